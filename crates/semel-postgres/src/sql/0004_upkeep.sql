-- When the database looks after these tables by itself. Its own settings wait until a fifth of a table has changed: of a queue with
-- a long history that is too seldom for the few rows at its front, which change several times a second; and it rests between pages,
-- which is meant for tables that change slowly.
ALTER TABLE @.head SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE @.key SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0);
ALTER TABLE @.tally SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE @.total SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
