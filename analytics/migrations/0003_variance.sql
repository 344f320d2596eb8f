-- Variance components of results; what they are is in analytics/fleet_variance.py.

CREATE TABLE variance (
    scope VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    workload_class VARCHAR NOT NULL,
    peer_group VARCHAR NOT NULL,
    level VARCHAR NOT NULL,
    position USMALLINT NOT NULL,
    units UINTEGER NOT NULL,
    variance DOUBLE,
    share DOUBLE,
    share_low DOUBLE,
    share_high DOUBLE,
    nil BOOLEAN,
    note VARCHAR,
    as_of_ns BIGINT NOT NULL
);
