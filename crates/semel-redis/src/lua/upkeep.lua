-- Housekeeping. ARGV: clock, ahead, floor, the task, and its parameters.
local now, emptied = time_of(ARGV[1], ARGV[2], ARGV[3])
if not now then
    return emptied
end
local what = ARGV[4]
-- The size of a log is estimated from the records at this many evenly spaced numbers, if at least FOUND of these have a record:
-- the numbers of records have gaps.
local PLACES, FOUND = 256, 64

-- The number of a record.
local function numbered(record)
    return tonumber(record[1]:match('^%d+'))
end

-- Drops the oldest records of a log, down to `kept`; and an eighth of all where their events seem to have more than `room`
-- bytes: a wrong estimate then drops little. Answers whether it dropped any.
local function trim(log, kept, room)
    local n = call('XLEN', log)
    if n > FOUND then
        local from = numbered(call('XRANGE', log, '-', '+', 'COUNT', 1)[1])
        local to = numbered(call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1])
        local bytes, found = 0, 0
        for i = 0, PLACES - 1 do
            local at = digits(from + math.floor((to - from) * i / (PLACES - 1)))
            local record = call('XRANGE', log, at, at)[1]
            if record then
                local fields = record[2]
                bytes, found = bytes + #fields[#fields], found + 1
            end
        end
        if found >= FOUND and bytes / found * n > room then
            kept = math.min(kept, math.floor(n * 7 / 8))
        end
    end
    if n > kept then
        call('XTRIM', log, 'MAXLEN', digits(kept))
        return true
    end
end

begin_writes(now)
local refused = refusal()
if refused then
    return refused
end

if what == 'forget' then
    -- ARGV: how many at most. Forgets heads that were kept for their keys alone, and whose time is over. Answers how many.
    local due = call('ZRANGE', BASE .. 'f', 0, tonumber(ARGV[5]) - 1)
    local now_place, n = place_of(now), 0
    for i = 1, #due do
        if is_before(now_place, sub(due[i], 1, 8)) then
            break
        end
        forget(sub(due[i], 9), NONE)
        n = n + 1
    end
    if n > 0 then
        flush('')
    end
    return n
elseif what == 'trim' then
    -- ARGV: how many records of the log are kept, and how many bytes of events. The numbers of records have gaps where a run of
    -- Redis ended.
    local log = BASE .. 'e'
    if trim(log, tonumber(ARGV[5]), tonumber(ARGV[6])) then
        local first = call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
        local last = first and numbered(first) - 1 or tonumber(call('HGET', BASE .. '!', 'records') or 0)
        call('HSET', BASE .. '!', 'dropped', digits(last))
    end
    return 0
elseif what == 'outlived' then
    -- ARGV: the key, and ended holders of it that others outlive, each with the version in which it was seen.
    local found = holders_of(key_record(ARGV[5]))
    for i = 6, #ARGV, 2 do
        local h = head_of(ARGV[i])
        if h and sub(h, @AT_VERSION) == ARGV[i + 1] then
            found.moved = take_out(found.done, ARGV[i]) or found.moved
        end
    end
    if found.moved then
        flush('')
    end
    return 0
elseif what == 'unforward' then
    -- ARGV: the highest version gone in the partition they led to; ids that lead nowhere any more, each with its forward as it
    -- was found.
    for i = 6, #ARGV, 2 do
        if call('GET', BASE .. 'p' .. ARGV[i]) == ARGV[i + 1] then
            call('DEL', BASE .. 'p' .. ARGV[i])
            call('ZREM', BASE .. 'P', ARGV[i])
        end
    end
    call('HSET', BASE .. '!', 'gone', digits(max(GONE, tonumber(ARGV[5]))))
    return 0
elseif what == 'gather' then
    -- Appends what was found in the partitions' logs to the log of all partitions. ARGV: how many partitions have something new; for
    -- each its number, the last of its records that that log has now, and the last it will have then; whether some were lost; then
    -- for each record its time and its events. Answers 0 and appends nothing if the log has changed meanwhile, else 1.
    local n = tonumber(ARGV[5])
    for i = 6, 3 + 3 * n, 3 do
        if (call('HGET', BASE .. '!', 'f' .. ARGV[i]) or '0') ~= ARGV[i + 1] then
            return 0
        end
    end
    local at = 6 + 3 * n
    local of = tonumber(call('HGET', BASE .. '!', 'log') or 0)
    if ARGV[at] == '1' then
        of = of + 1
        call('HSET', BASE .. '!', 'logdropped', digits(of))
    end
    for i = at + 1, #ARGV, 2 do
        of = of + 1
        call('XADD', BASE .. 'E', digits(of) .. '-1', 'a', ARGV[i], 'e', ARGV[i + 1])
    end
    call('HSET', BASE .. '!', 'log', digits(of))
    for i = 6, 3 + 3 * n, 3 do
        call('HSET', BASE .. '!', 'f' .. ARGV[i], ARGV[i + 2])
    end
    return 1
elseif what == 'trim all' then
    -- The same for the log of all partitions.
    local log = BASE .. 'E'
    if trim(log, tonumber(ARGV[5]), tonumber(ARGV[6])) then
        local first = call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
        local last = first and numbered(first) - 1 or tonumber(call('HGET', BASE .. '!', 'log') or 0)
        call('HSET', BASE .. '!', 'logdropped', digits(last))
    end
    return 0
elseif what == 'inherit' then
    -- ARGV: the secret of the store whose place this one takes; the record up to which this one's own log is reported as
    -- dropped, or 0; the time before which nothing happens any more.
    local fact, count, dropped = BASE .. '!', 'records', 'dropped'
    if PARTITIONS then
        count, dropped = 'log', 'logdropped'
    end
    local last = tonumber(ARGV[6])
    if last > 0 then
        last = max(last, tonumber(call('HGET', fact, count) or 0))
        call('HSET', fact, count, digits(last), dropped, digits(last))
    end
    local before = call('HGET', fact, 'secret')
    if before ~= ARGV[5] and (call('HGET', fact, 'partition') or '0') ~= '0' then
        -- The first partition, which is told last, still has this secret.
        call('HSET', fact, 'before', before)
    end
    call('HSET', fact, 'secret', ARGV[5], 'gone', digits(max(GONE, tonumber(ARGV[7]))))
    return 0
elseif what == 'clear' then
    -- ARGV: a cursor of Redis, and how many pages of keys to scan. Deletes everything but the store's description of itself,
    -- and answers the next cursor. Readers of the log are told that what came until now is gone.
    local at, pages = ARGV[5], tonumber(ARGV[6])
    -- A decided commit over several partitions stays: it is told to those that do not know it yet, and deleted there like all else.
    local decided = call('HGET', BASE .. '+', 'phase') == 'decided' and BASE .. '+'
    repeat
        local page = call('SCAN', at, 'MATCH', BASE .. '?*', 'COUNT', 1000)
        at, pages = page[1], pages - 1
        for i = 1, #page[2] do
            if page[2][i] ~= BASE .. '!' and page[2][i] ~= decided then
                call('UNLINK', page[2][i])
            end
        end
    until at == '0' or pages == 0
    local records = call('HINCRBY', BASE .. '!', 'records', 1)
    call('HSET', BASE .. '!', 'dropped', digits(records), 'at', digits(now))
    return at
end
