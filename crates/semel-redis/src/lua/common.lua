-- What every script begins with. KEYS[1] is the partition: all its keys begin so, and have one hash tag. Nothing in here knows a
-- state: a head says by its first bytes where it is filed, and everything after its names is the program's own.
--
-- What stands behind an `@` is a number that the program puts there: where heads are filed (`SLOT`), their flags (`FLAG`), why a ready
-- one is not granted (`WHY`), and where parts of a head begin and end (`AT`).
--
-- A head: 1 slot (@SLOT_KEPT: kept for its key alone), 2 state, 3 flags (@FLAG_EXHAUSTED exhausted, @FLAG_ALONE never beside another
-- run of its key, @FLAG_DEAD dead letter, @FLAG_LIMITED under a limit, @FLAG_KEY has a key), 4 priority (the lowest first),
-- 5 version, 13 fence, 21 attempt, 25 visibility, 29 timeout (milliseconds), 33 place in its slot, 41 place in the order of expiry,
-- 49 started, 57 visible until, 65 run until, 73 limit, 81 names (type, queue, each behind its length), its key, the worker behind its
-- length, the rest. Numbers have their highest byte first. A place is a time whose bytes are in its order; all zeros are none.
local BASE = KEYS[1]
local call = redis.call
local sub, byte, char, format, max = string.sub, string.byte, string.char, string.format, math.max
local pack, unpack_bytes = struct.pack, struct.unpack
local NONE = '\0\0\0\0\0\0\0\0'
local KEPT = @SLOT_KEPT
-- The highest version of a job that is gone, and how many records the log has had, as `time_of` found them.
local GONE, RECORDS = 0, 0
-- By which commit over several partitions this one is locked, and into how many the store is divided, if it is.
local LOCK, PARTITIONS = false, false
-- How much later than anything that was told time begins after a restart of the server, in microseconds.
local LEAD = 2000000
-- How far time is ahead of the clock at most by such beginnings, where several partitions begin one after the other (`open`).
local STAND = 3 * LEAD
-- What is told in a moment that stands is numbered one by one: so much room is left for it, in microseconds.
local ROOM = 20000

local function number(text, at)
    return (unpack_bytes('>I8', text, at or 1))
end

-- Numbers have more digits than Lua prints by itself.
local function digits(n)
    return format('%.0f', n)
end

local function flag(h, bit_value)
    return bit.band(byte(h, 3), bit_value) ~= 0
end

local function place_of(at)
    return '\128' .. sub(pack('>I8', at), 2)
end

-- Whether place `a` is before `b`: by halves, because a whole one has more bits than a number here; and not as texts, whose order
-- depends on the server's language.
local function is_before(a, b)
    local a_high, a_low = unpack_bytes('>I4I4', a)
    local b_high, b_low = unpack_bytes('>I4I4', b)
    return a_high < b_high or (a_high == b_high and a_low < b_low)
end

-- Where a head's names end, and its queue. One head is mostly asked about several times in a row.
local names_head, names_end, names_queue
local function names_of(h)
    if h ~= names_head then
        local type_length = byte(h, 81) * 256 + byte(h, 82)
        local from = 85 + type_length
        local queue_length = byte(h, from - 2) * 256 + byte(h, from - 1)
        names_head, names_end, names_queue = h, from + queue_length, sub(h, from, from + queue_length - 1)
    end
    return names_end, names_queue
end

local function key_of(h)
    if not flag(h, @FLAG_KEY) then
        return nil
    end
    local after = names_of(h)
    return sub(h, after, after + 31)
end

-- The store's time, and what the clock says: the server's clock, or the caller's in a test; plus what the caller knows it to have
-- jumped back; never before what the caller has seen, nor before the last commit, and after the versions of all jobs that are gone.
-- Where the store says nothing of itself it was emptied, and whoever asks is to make it anew before anything is written (`open`): then no
-- time, and what he is told.
local function time_of(clock, ahead, floor)
    local raw
    if clock == '' then
        local now = call('TIME')
        raw = tonumber(now[1]) * 1000000 + tonumber(now[2])
    else
        raw = tonumber(clock)
    end
    local fact = call('HMGET', BASE .. '!', 'at', 'gone', 'lead', 'records', 'lock', 'partitions', 'layout')
    if not fact[7] then
        return nil, redis.error_reply('SEMELEMPTY nothing is left of the store')
    end
    local clocked = raw + tonumber(ahead)
    GONE, RECORDS = tonumber(fact[2] or 0), tonumber(fact[4] or 0)
    LOCK, PARTITIONS = fact[5], fact[6]
    local at, lead = tonumber(fact[1] or 0), tonumber(fact[3] or 0)
    local now = max(clocked, tonumber(floor), at, GONE + 1)
    -- Where it stands, as below, each commit is after the one before it all the same: the runs of one key go by it. In a store that is not
    -- divided there is room for 10,000 of them. A test's clock stands when the test says so.
    if now == at and now > clocked and clock == '' then
        if PARTITIONS and now - clocked <= STAND or at >= lead and at - lead < ROOM / 2 then
            now = at + 1
        end
    end
    -- After a restart of the server time stands for a moment (`open`), which nobody is to take for a jump of the clock: or it would be
    -- ahead for good. Jobs that are gone meanwhile move it by a little. In a divided store it stands in all partitions, and in each it may
    -- be told by any other.
    local stood = now - lead
    if PARTITIONS and now - clocked <= STAND or now - clocked <= LEAD + ROOM and stood >= 0 and stood <= ROOM then
        raw = now - tonumber(ahead)
    end
    return now, raw
end

-- Nobody reads or writes between what a commit over several partitions has looked at and what it makes of it.
local function refusal()
    return LOCK and redis.error_reply('SEMELLOCK the partition is locked by commit ' .. LOCK)
end

-- Whoever ends what was begun does this before he writes: the first write of a script is what Redis refuses when its memory is full, unless
-- it takes none.
local function insist()
    call('HDEL', BASE .. '!', 'none')
end

-- Writes something that replicas can be waited for by. Kept for as long as anybody waits.
local function nudge()
    insist()
    call('SET', BASE .. '@', '', 'PX', 60000)
end

-- A key's record: its version, how many live holders, they, and the ended ones. These stay as they are stored until somebody asks
-- for them (`holders_of`): mostly nothing moves but the version.
local function parse_key(text)
    if not text then
        return { version = 0, text = false, live = {}, done = {}, moved = false }
    end
    -- With room for all that it may say later.
    return { version = number(text), text = text, live = false, done = false, moved = false }
end

local function holders_of(found)
    if found.live then
        return found
    end
    local text, live, done = found.text, {}, {}
    local live_end = 12 + 16 * unpack_bytes('>I4', text, 9)
    for at = 13, #text, 16 do
        local list = at < live_end and live or done
        list[#list + 1] = sub(text, at, at + 15)
    end
    found.live, found.done = live, done
    return found
end

local function in_pieces(list, work)
    for from = 1, #list, 2000 do
        work(from, math.min(from + 1999, #list))
    end
end

-- The records of these names, read all at once: a call for each costs more than what it reads.
local function get_named(names, from, to)
    if from > to then
        return {}
    elseif to - from < 2000 then
        return call('MGET', unpack(names, from, to))
    end
    local found = {}
    for first = from, to, 2000 do
        local piece = call('MGET', unpack(names, first, math.min(first + 1999, to)))
        for i = 1, #piece do
            found[#found + 1] = piece[i]
        end
    end
    return found
end

-- The records of one kind.
local function get_all(letter, names)
    local records, before = {}, BASE .. letter
    for i = 1, #names do
        records[i] = before .. names[i]
    end
    return get_named(records, 1, #records)
end

-- The notes of these jobs. Few have any.
local function notes_of_all(ids)
    local records, found, any, none = {}, {}, 0, {}
    for i = 1, #ids do
        records[i], found[i] = BASE .. 'n' .. ids[i], none
    end
    in_pieces(records, function(from, to)
        any = any + call('EXISTS', unpack(records, from, to))
    end)
    if any > 0 then
        for i = 1, #ids do
            found[i] = call('HGETALL', records[i])
        end
    end
    return found
end
