-- Every server asks each second which queues have settings. The table also has a row for each limit, and those rows change often.
CREATE INDEX queue_settings ON @.queue (name) WHERE settings IS NOT NULL AND left(name, 1) <> '~';
ALTER TABLE @.queue SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
