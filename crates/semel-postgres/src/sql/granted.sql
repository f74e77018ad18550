-- What a grant writes to a head `h`, in `lease` and in `take`: the same as the core's grant (`semel_core::lease::grant`). A job with 0
-- for one of its two times gets the template's; it is filed among leases by the earlier of the two ends. `@worker` gets the job.
-- These comments are for readers of this file only: they are left out of the functions' text.
state = p_state, slot = p_slot, attempt = h.attempt + 1,
version = greatest(h.version + 1, v_now), fence = greatest(h.fence + 1, v_now),
started_at = v_now, worker = @worker,
visible_until = v_now + 1000 * CASE h.visibility_ms WHEN 0 THEN p_visibility_ms ELSE h.visibility_ms END,
run_until = v_now + 1000 * CASE h.timeout_ms WHEN 0 THEN p_timeout_ms ELSE h.timeout_ms END,
slot_at = v_now + 1000 * least(
    CASE h.visibility_ms WHEN 0 THEN p_visibility_ms ELSE h.visibility_ms END,
    CASE h.timeout_ms WHEN 0 THEN p_timeout_ms ELSE h.timeout_ms END)
