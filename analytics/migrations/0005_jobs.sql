-- What ran on which GPU, and when.

CREATE TABLE jobs (
    gpu_uuid VARCHAR NOT NULL,
    node VARCHAR NOT NULL,
    job_id VARCHAR NOT NULL,
    source VARCHAR NOT NULL,
    name VARCHAR,
    namespace VARCHAR,
    workload_class VARCHAR,
    started_ns BIGINT NOT NULL,
    seen_ns BIGINT NOT NULL,
    ended BOOLEAN NOT NULL,
    processes UINTEGER,
    memory_bytes UBIGINT
);
