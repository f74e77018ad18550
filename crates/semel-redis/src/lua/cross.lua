-- The steps of a commit over several partitions (a crossing). One is under way at a time: it has the place in the first
-- partition (`+`), which stores its number, its maker's token, the time of its last sign of life, which partitions take part,
-- and, once it is decided, what each of them is to be told. A partition that takes part is locked from when its records are
-- looked at until it has been told. ARGV: clock, ahead, floor, the step, the crossing's number, and the step's parameters.
local now, emptied = time_of(ARGV[1], ARGV[2], ARGV[3])
if not now then
    return emptied
end
local what, turn = ARGV[4], ARGV[5]
local fact, place_name = BASE .. '!', BASE .. '+'

-- How long a decision is remembered, in milliseconds: longer than its maker may go on asking.
local DECIDED_KEPT = 120000

-- Redis's own clock, whatever the store's time is in a test.
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
        -- The clock was set back: the age counts from now.
        insist()
        call('HSET', place_name, 'at', digits(micros()))
        age = 0
    end
    return slot, digits(age)
end

if what == 'enter' then
    -- ARGV: instead of its number one that it must exceed; the token; who takes part. Answers the crossing's number; or the
    -- number, the phase and the age of the one that has the place.
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
    -- ARGV: who takes part; how many heads, keys, rows and documents are looked at; their names. Answers the time, the highest
    -- version of a job that is gone, the heads, what the ids were absorbed by, where they lead, and the versions of the others.
    -- A request that comes late, after its crossing was given up, locks nothing: nobody waits for it.
    local seen = tonumber(call('HGET', fact, 'seen') or 0)
    if LOCK ~= turn then
        if tonumber(turn) <= seen then
            return { 'late', digits(seen) }
        end
        -- A lock that is still here belongs to a crossing that is over: this one has the place now.
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
    -- ARGV: the token; for each partition its number and what it is to be told. Answers whether the crossing is decided.
    local slot = there()
    local mark = BASE .. 'm' .. ARGV[6]
    if not slot or slot[1] ~= turn or slot[2] ~= ARGV[6] then
        -- This may be a repeated request: the first may have decided, and others may have told all partitions by now.
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
    -- ARGV: the token. A sign of life from the crossing that has the place.
    local slot = there()
    if slot and slot[2] == ARGV[6] then
        insist()
        call('HSET', place_name, 'at', digits(micros()))
    end
    return 'yes'
elseif what == 'look' then
    -- Answers the number, the phase, the age and the partitions of the crossing that has the place.
    local slot, age = there()
    if not slot then
        return {}
    end
    return { slot[1], slot[3], age, slot[5] }
elseif what == 'told' then
    -- ARGV: a partition. Answers what the crossing has decided to tell it. Other servers tell it that only once replicas have
    -- confirmed the write made here: this Redis may no longer be the primary.
    nudge()
    return call('HGET', place_name, 'turn') == turn and call('HGET', place_name, 'to' .. ARGV[6]) or ''
elseif what == 'give up' or what == 'withdraw' then
    -- ARGV: the least age of the last sign of life, in microseconds. Takes the place from a crossing that is not decided.
    -- Answers whether that no longer has the place. Replicas must confirm the answer, unless the maker itself withdraws a
    -- crossing that it will not decide.
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
    -- All partitions have been told.
    if call('HGET', place_name, 'turn') == turn then
        call('DEL', place_name)
    end
    return 'yes'
end
return redis.error_reply('SEMELWHAT nobody knows what that is')
