-- A commit over several partitions. One is on its way at a time: its place is in the first partition (`+`), and says whose it is, since
-- when, which partitions take part, and, once that is decided, what each of them is to be told. A partition that takes part is locked
-- from when its records are looked at until it was told. ARGV: clock, ahead, floor, what, and what that needs.
local now, emptied = time_of(ARGV[1], ARGV[2], ARGV[3])
if not now then
    return emptied
end
local what, turn = ARGV[4], ARGV[5]
local fact, place_name = BASE .. '!', BASE .. '+'

-- How long it is remembered that something was decided, in milliseconds: longer than anybody asks again.
local DECIDED_KEPT = 120000

-- By the server's own clock, whatever a test takes for the time.
local function micros()
    local at = call('TIME')
    return tonumber(at[1]) * 1000000 + tonumber(at[2])
end

local function there()
    local slot = call('HMGET', place_name, 'turn', 'token', 'phase', 'at', 'with')
    if not slot[1] then
        return nil
    end
    local age = micros() - tonumber(slot[4])
    if age < 0 then
        -- The clock was set back: its age begins anew.
        insist()
        call('HSET', place_name, 'at', digits(micros()))
        age = 0
    end
    return slot, digits(age)
end

if what == 'enter' then
    -- The token, the least number it may have, who takes part. Answers its number, or that of the one whose place it is, and how old that is.
    local slot, age = there()
    if slot and slot[2] ~= ARGV[6] then
        return { 'taken', slot[1], slot[3], age }
    elseif slot then
        return { 'entered', slot[1] }
    end
    local number = digits(max(tonumber(call('HGET', fact, 'crossings') or 0), tonumber(turn)) + 1)
    call('HSET', place_name, 'turn', number, 'token', ARGV[6], 'phase', 'open', 'at', digits(micros()), 'with', ARGV[7])
    call('HSET', fact, 'crossings', number)
    return { 'entered', number }
elseif what == 'lock' then
    -- Who takes part; how many heads, keys, rows and documents are to be looked at, and their names. Answers the time, the highest version
    -- that is gone, the heads, whether the ids are absorbed ones, where they lead, and the versions of the others. One that comes late,
    -- after it was given up, finds nobody there who waits for it.
    local seen = tonumber(call('HGET', fact, 'seen') or 0)
    if LOCK ~= turn then
        if tonumber(turn) <= seen then
            return { 'late', digits(seen) }
        end
        -- Whose lock is still there is gone: the place is another's.
        call('HSET', fact, 'lock', turn, 'seen', turn, 'with', ARGV[6])
    end
    local heads, keys, rows, documents = unpack_bytes('>I4I4I4I4', ARGV[7])
    local ids, at = {}, 8
    for i = 1, heads do
        ids[i] = ARGV[at + i - 1]
    end
    at = at + heads
    local named = {}
    for i = 1, keys do
        named[i] = ARGV[at + i - 1]
    end
    at = at + keys
    local versions = {}
    local function note(text)
        versions[#versions + 1] = text and #text >= 8 and sub(text, 1, 8) or NONE
    end
    local records = get_all('k', named)
    for i = 1, keys do
        note(records[i])
    end
    for i = at, at + rows - 1 do
        note(call('GETRANGE', BASE .. 'q' .. ARGV[i], 0, 7))
    end
    at = at + rows
    for i = at, at + documents - 1 do
        note(call('GETRANGE', BASE .. 'o' .. ARGV[i], 0, 7))
    end
    return { 'locked', digits(now), digits(GONE), get_all('h', ids), get_all('s', ids), get_all('p', ids), table.concat(versions) }
elseif what == 'decide' then
    -- The token, and for each partition its number and what it is to be told. Answers whether it is decided.
    local slot = there()
    local mark = BASE .. 'm' .. ARGV[6]
    if not slot or slot[1] ~= turn or slot[2] ~= ARGV[6] then
        -- Who asks again may have been heard, and others have told it all by now.
        return call('GET', mark) or 'no'
    elseif slot[3] ~= 'decided' then
        local told = { 'phase', 'decided' }
        for i = 7, #ARGV, 2 do
            told[#told + 1] = 'to' .. ARGV[i]
            told[#told + 1] = ARGV[i + 1]
        end
        call('HSET', place_name, unpack(told))
        call('SET', mark, 'yes', 'PX', DECIDED_KEPT)
    end
    return 'yes'
elseif what == 'alive' then
    -- The token: whoever has the place goes on.
    local slot = there()
    if slot and slot[2] == ARGV[6] then
        insist()
        call('HSET', place_name, 'at', digits(micros()))
    end
    return 'yes'
elseif what == 'look' then
    -- Who has the place.
    local slot, age = there()
    if not slot then
        return {}
    end
    return { slot[1], slot[3], age, slot[5] }
elseif what == 'told' then
    -- What a partition is to be told by the one that is decided. Others tell it only once replicas know of it: this may be the primary no more,
    -- and a write is what they are waited for by.
    nudge()
    return call('HGET', place_name, 'turn') == turn and call('HGET', place_name, 'to' .. ARGV[6]) or ''
elseif what == 'give up' or what == 'withdraw' then
    -- One that is not decided, if its last sign is so old, in microseconds. Answers whether it has its place no more; who is not its maker asks
    -- what replicas confirm.
    local slot, age = there()
    if what == 'give up' then
        nudge()
    end
    if not slot or slot[1] ~= turn then
        return 'yes'
    elseif slot[3] == 'open' and tonumber(age) >= tonumber(ARGV[6]) then
        call('DEL', place_name)
        return 'yes'
    end
    return 'no'
elseif what == 'unlock' then
    if LOCK == turn then
        call('HDEL', fact, 'lock', 'with')
    end
    return 'yes'
elseif what == 'leave' then
    -- All were told.
    if call('HGET', place_name, 'turn') == turn then
        call('DEL', place_name)
    end
    return 'yes'
end
return redis.error_reply('SEMELWHAT nobody knows what that is')
