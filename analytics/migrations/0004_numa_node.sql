-- The host's NUMA node of each GPU.

ALTER TABLE gpus ADD COLUMN numa_node USMALLINT;
