-- The published tables, as telemetry/tables.py had them, and what the store itself needs.
-- No keys and no indexes: rows come in time order and zone maps prune; analytics/store.py keeps keys unique.

CREATE TABLE windows (
    gpu_uuid VARCHAR NOT NULL,
    window_start_ns BIGINT NOT NULL,
    window_s FLOAT NOT NULL,
    node VARCHAR NOT NULL,
    samples UINTEGER NOT NULL,
    completeness_ratio FLOAT NOT NULL,
    busy_samples UINTEGER NOT NULL,
    busy_ratio FLOAT,
    workload_class VARCHAR,
    effective_clock_mhz FLOAT,
    clock_min_mhz FLOAT,
    memory_clock_mhz FLOAT,
    power_w FLOAT,
    power_max_w FLOAT,
    power_limit_w FLOAT,
    temperature_c FLOAT,
    temperature_max_c FLOAT,
    memory_temperature_max_c FLOAT,
    utilization_ratio FLOAT,
    sm_active_ratio FLOAT,
    tensor_active_ratio FLOAT,
    dram_active_ratio FLOAT,
    fp_active_ratio FLOAT,
    nvlink_bytes_per_s FLOAT,
    pcie_bytes_per_s FLOAT,
    sw_power_cap_ratio FLOAT,
    hw_slowdown_ratio FLOAT,
    sw_thermal_ratio FLOAT,
    hw_thermal_ratio FLOAT,
    power_brake_ratio FLOAT,
    power_throttle_s FLOAT,
    thermal_throttle_s FLOAT,
    brake_throttle_s FLOAT,
    energy_j FLOAT,
    ecc_corrected FLOAT,
    ecc_uncorrected FLOAT,
    remapped_rows FLOAT,
    row_remap_pending BOOLEAN,
    row_remap_failed BOOLEAN,
    pcie_replays FLOAT,
    pcie_link_gen FLOAT,
    pcie_link_width FLOAT,
    nvlink_errors FLOAT,
    counter_resets UINTEGER NOT NULL,
    recovery_action FLOAT,
    distinct_readings UINTEGER NOT NULL,
    rejected_values UINTEGER NOT NULL,
    application_clocks_ratio FLOAT
);

CREATE TABLE scores (
    gpu_uuid VARCHAR NOT NULL,
    node VARCHAR,
    as_of_ns BIGINT NOT NULL,
    window_start_ns BIGINT NOT NULL,
    peer_group VARCHAR,
    peers UINTEGER NOT NULL,
    workload_class VARCHAR,
    speed DOUBLE,
    speed_low DOUBLE,
    speed_high DOUBLE,
    speeds VARCHAR,
    evidence UINTEGER NOT NULL,
    tier VARCHAR NOT NULL,
    tier_since_ns BIGINT NOT NULL,
    reasons VARCHAR NOT NULL,
    cause VARCHAR,
    action VARCHAR NOT NULL,
    state VARCHAR
);

CREATE TABLE transitions (
    transition_id VARCHAR NOT NULL,
    time_ns BIGINT NOT NULL,
    gpu_uuid VARCHAR NOT NULL,
    node VARCHAR,
    from_tier VARCHAR,
    to_tier VARCHAR NOT NULL,
    reasons VARCHAR NOT NULL,
    cause VARCHAR,
    action VARCHAR NOT NULL,
    speed DOUBLE
);

CREATE TABLE events (
    time_ns BIGINT NOT NULL,
    node VARCHAR NOT NULL,
    gpu_uuid VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    code BIGINT NOT NULL,
    detail VARCHAR
);

CREATE TABLE measurements (
    time_ns BIGINT NOT NULL,
    scope VARCHAR NOT NULL,
    subject VARCHAR NOT NULL,
    node VARCHAR,
    name VARCHAR NOT NULL,
    workload_class VARCHAR NOT NULL,
    value DOUBLE NOT NULL,
    unit VARCHAR NOT NULL,
    higher_is_better BOOLEAN NOT NULL,
    evidence VARCHAR
);

CREATE TABLE gpus (
    gpu_uuid VARCHAR NOT NULL,
    node VARCHAR NOT NULL,
    slot USMALLINT,
    bus_id VARCHAR,
    model VARCHAR,
    serial VARCHAR,
    driver_version VARCHAR,
    memory_total_bytes UBIGINT,
    power_limit_w FLOAT,
    power_limit_default_w FLOAT,
    max_sm_clock_mhz USMALLINT,
    max_memory_clock_mhz USMALLINT,
    mig_enabled BOOLEAN,
    fabric VARCHAR,
    seen_ns BIGINT NOT NULL
);

CREATE TABLE nodes (
    node VARCHAR NOT NULL,
    expected_gpus USMALLINT,
    seen_gpus USMALLINT NOT NULL,
    driver_version VARCHAR,
    agent_version VARCHAR,
    place VARCHAR NOT NULL,
    seen_ns BIGINT NOT NULL
);

CREATE TABLE topology (
    node VARCHAR NOT NULL,
    position USMALLINT NOT NULL,
    level VARCHAR NOT NULL,
    value VARCHAR NOT NULL,
    source VARCHAR NOT NULL
);

CREATE TABLE blocks (
    level VARCHAR NOT NULL,
    value VARCHAR NOT NULL,
    workload_class VARCHAR NOT NULL,
    rank UINTEGER NOT NULL,
    gpus UINTEGER NOT NULL,
    healthy_gpus UINTEGER NOT NULL,
    nodes UINTEGER NOT NULL,
    full_nodes UINTEGER NOT NULL,
    expected_slowdown DOUBLE,
    slowest_gpu VARCHAR,
    as_of_ns BIGINT NOT NULL
);

-- Which log the offsets below belong to; one row, or none before the first write.
CREATE TABLE log (log_id VARCHAR NOT NULL);

-- The next offset to read of each partition.
CREATE TABLE places (
    topic VARCHAR NOT NULL,
    partition INTEGER NOT NULL,
    next_offset BIGINT NOT NULL
);

-- One bucket rule for everything: UTC, counted in ns since 1970, whatever the time zone of session or machine.
CREATE MACRO utc(ns) AS make_timestamp_ns(ns);
CREATE MACRO hour_of(ns) AS ns - ns % 3600000000000;
CREATE MACRO day_of(ns) AS CAST(make_timestamp_ns(ns) AS DATE);

CREATE VIEW tiers AS
SELECT tier, count(*) AS gpus, min(tier_since_ns) AS oldest_since_ns, max(as_of_ns) AS as_of_ns
FROM scores
GROUP BY tier;
