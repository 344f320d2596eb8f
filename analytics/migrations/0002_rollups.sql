-- Hourly roll-ups of windows; what they hold is in analytics/rollups.py.

CREATE TABLE windows_hourly (
    gpu_uuid VARCHAR NOT NULL,
    hour_start_ns BIGINT NOT NULL,
    node VARCHAR NOT NULL,
    windows UINTEGER NOT NULL,
    samples UBIGINT,
    completeness_ratio DOUBLE,
    busy_samples UBIGINT,
    busy_ratio DOUBLE,
    effective_clock_mhz DOUBLE,
    clock_min_mhz DOUBLE,
    memory_clock_mhz DOUBLE,
    power_w DOUBLE,
    power_max_w DOUBLE,
    power_limit_w DOUBLE,
    temperature_c DOUBLE,
    temperature_max_c DOUBLE,
    memory_temperature_max_c DOUBLE,
    utilization_ratio DOUBLE,
    sm_active_ratio DOUBLE,
    tensor_active_ratio DOUBLE,
    dram_active_ratio DOUBLE,
    fp_active_ratio DOUBLE,
    nvlink_bytes_per_s DOUBLE,
    pcie_bytes_per_s DOUBLE,
    sw_power_cap_ratio DOUBLE,
    hw_slowdown_ratio DOUBLE,
    sw_thermal_ratio DOUBLE,
    hw_thermal_ratio DOUBLE,
    power_brake_ratio DOUBLE,
    power_throttle_s DOUBLE,
    thermal_throttle_s DOUBLE,
    brake_throttle_s DOUBLE,
    energy_j DOUBLE,
    ecc_corrected DOUBLE,
    ecc_uncorrected DOUBLE,
    remapped_rows DOUBLE,
    pcie_replays DOUBLE,
    nvlink_errors DOUBLE,
    counter_resets UBIGINT,
    rejected_values UBIGINT,
    application_clocks_ratio DOUBLE
);

CREATE TABLE blocks_hourly (
    level VARCHAR NOT NULL,
    value VARCHAR NOT NULL,
    hour_start_ns BIGINT NOT NULL,
    gpus UINTEGER NOT NULL,
    windows UBIGINT NOT NULL,
    samples UBIGINT,
    completeness_ratio DOUBLE,
    busy_samples UBIGINT,
    busy_ratio DOUBLE,
    effective_clock_mhz DOUBLE,
    clock_min_mhz DOUBLE,
    power_w DOUBLE,
    power_max_w DOUBLE,
    temperature_c DOUBLE,
    temperature_max_c DOUBLE,
    utilization_ratio DOUBLE,
    power_throttle_s DOUBLE,
    thermal_throttle_s DOUBLE,
    brake_throttle_s DOUBLE,
    energy_j DOUBLE,
    ecc_corrected DOUBLE,
    ecc_uncorrected DOUBLE,
    remapped_rows DOUBLE,
    pcie_replays DOUBLE,
    nvlink_errors DOUBLE,
    counter_resets UBIGINT,
    application_clocks_ratio DOUBLE
);

-- Hours that got windows since they were last rolled up. Only ever appended to and deleted from: several rows an hour.
CREATE TABLE hours_to_roll (hour_start_ns BIGINT NOT NULL);

-- Where each node is: the topology table first, then what the node itself says for levels that it leaves open.
CREATE VIEW node_levels AS
WITH told AS (
    SELECT node, unnest(from_json(place, '[["VARCHAR"]]')) AS pair
    FROM nodes
    WHERE json_valid(place)
)
SELECT node, level, value FROM topology
UNION ALL
SELECT told.node, pair[1], pair[2]
FROM told
WHERE NOT EXISTS (FROM topology t WHERE t.node = told.node AND t.level = told.pair[1]);
