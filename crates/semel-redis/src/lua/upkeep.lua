-- Housekeeping. ARGV: clock, ahead, floor, what, and what that needs.
local now, emptied = time_of(ARGV[1], ARGV[2], ARGV[3])
if not now then
    return emptied
end
local what = ARGV[4]
-- At how many places of a log it is seen how much a record has, and at how many of them there must be one: elsewhere the numbers of
-- records have gaps.
local PLACES, FOUND = 256, 64

-- The number of a record.
local function numbered(record)
    return tonumber(record[1]:match('^%d+'))
end

-- Drops the oldest records of a log but for so many; and an eighth of them where it seems to have more bytes of events than there is room
-- for, so that a guess that is wrong drops little. Answers whether it dropped any.
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
    -- Heads that were kept for their keys alone and are needed no longer: at most so many. Says how many.
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
    -- So many records of the log are kept, and so many bytes. Their numbers have gaps, where a run of the server ended.
    local log = BASE .. 'e'
    if trim(log, tonumber(ARGV[5]), tonumber(ARGV[6])) then
        local first = call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
        local last = first and numbered(first) - 1 or tonumber(call('HGET', BASE .. '!', 'records') or 0)
        call('HSET', BASE .. '!', 'dropped', digits(last))
    end
    return 0
elseif what == 'outlived' then
    -- The key, and ended holders of it that others outlive, each with the version in which it was seen.
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
    -- Ids that lead nowhere any more, each with what was found of it; the versions that were gone where it led.
    for i = 6, #ARGV, 2 do
        if call('GET', BASE .. 'p' .. ARGV[i]) == ARGV[i + 1] then
            call('DEL', BASE .. 'p' .. ARGV[i])
            call('ZREM', BASE .. 'P', ARGV[i])
        end
    end
    call('HSET', BASE .. '!', 'gone', digits(max(GONE, tonumber(ARGV[5]))))
    return 0
elseif what == 'gather' then
    -- Adds to the log of all partitions what was found in theirs: how many partitions are told of; for each its number, up to which of its
    -- records that log goes now and to which it goes then; whether some were lost; then for each record its time and its events.
    -- Answers whether that was still so.
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
    -- The same of the log of all partitions.
    local log = BASE .. 'E'
    if trim(log, tonumber(ARGV[5]), tonumber(ARGV[6])) then
        local first = call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
        local last = first and numbered(first) - 1 or tonumber(call('HGET', BASE .. '!', 'log') or 0)
        call('HSET', BASE .. '!', 'logdropped', digits(last))
    end
    return 0
elseif what == 'inherit' then
    -- The secret of the store whose place this one takes, up to which record its own log is to be said to be gone, and the time before
    -- which nothing happens any more.
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
        -- The first partition has this one still, and is told last.
        call('HSET', fact, 'before', before)
    end
    call('HSET', fact, 'secret', ARGV[5], 'gone', digits(max(GONE, tonumber(ARGV[7]))))
    return 0
elseif what == 'clear' then
    -- Deletes everything but what the store knows of itself, so many pages of keys behind a cursor of the server's, and answers the next
    -- one. Whoever has read the log until now is told that it is gone.
    local at, pages = ARGV[5], tonumber(ARGV[6])
    -- What is decided over several partitions is told to those that do not know it yet, and deleted there like all else.
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
