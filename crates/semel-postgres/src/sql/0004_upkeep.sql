-- When autovacuum processes these tables. By default it waits until a fifth of a table has changed, which in a table with a long
-- history is too seldom for the few rows at the front of a queue: they change several times a second. It also pauses between pages,
-- which suits tables that change slowly.
ALTER TABLE @.head SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE @.key SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0);
ALTER TABLE @.tally SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE @.total SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
