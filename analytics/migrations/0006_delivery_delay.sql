-- How long after its newest sample a message came.

ALTER TABLE windows ADD COLUMN delivery_delay_s FLOAT;
