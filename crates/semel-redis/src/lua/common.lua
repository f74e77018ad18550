-- The prelude of every script. KEYS[1] is the partition's prefix: all keys of the partition begin with it and share its hash
-- tag. No script knows what a job's state means: the first bytes of a head say where it is filed, and what follows the worker
-- in it only the server reads.
--
-- Each name behind an `@` is replaced by numbers before a script is sent (`scripts.rs`): where heads are filed (`SLOT`), their
-- flags (`FLAG`), why a ready job is not granted (`WHY`), and the first and the last byte of parts of a head (`AT`).
--
-- The parts of a head, each with the number of its first byte: 1 slot (@SLOT_KEPT: kept for its key alone), 2 state, 3 flags
-- (@FLAG_EXHAUSTED exhausted, @FLAG_ALONE never beside another run of its key, @FLAG_DEAD dead letter, @FLAG_LIMITED under a
-- limit, @FLAG_KEY has a key), 4 priority (the lowest first), 5 version, 13 fence, 21 attempt, 25 visibility, 29 timeout
-- (milliseconds), 33 place in its slot, 41 place in the order of expiry, 49 started, 57 visible until, 65 run until, 73 limit,
-- 81 names (type, queue, each preceded by its length), its key, the worker preceded by its length, the rest. Numbers are
-- big-endian. A place is a time encoded so that its bytes sort in the order of time; all zeros mean none.
local BASE = KEYS[1]
local call = redis.call
local sub, byte, char, format, max = string.sub, string.byte, string.char, string.format, math.max
local pack, unpack_bytes = struct.pack, struct.unpack
local NONE = '\0\0\0\0\0\0\0\0'
local KEPT = @SLOT_KEPT
-- The highest version of a job that is gone, and how many records the log has had, both as `time_of` read them.
local GONE, RECORDS = 0, 0
-- The number of the commit over several partitions that has locked this one, and the store's number of partitions; false where
-- there is no lock, or the store is undivided.
local LOCK, PARTITIONS = false, false
-- After a restart of Redis, time begins this much later than anything known to have been told before, in microseconds.
local LEAD = 2000000
-- How far such restarts put time ahead of the clock at most, where several partitions begin one after the other (`open.lua`).
local STAND = 3 * LEAD
-- While time stands still, commits are told apart by single microseconds: this much room is left for them, in microseconds.
local ROOM = 20000

local function number(text, at)
    return (unpack_bytes('>I8', text, at or 1))
end

-- Lua's own conversion to text prints too few digits of these numbers.
local function digits(n)
    return format('%.0f', n)
end

local function flag(h, bit_value)
    return bit.band(byte(h, 3), bit_value) ~= 0
end

local function place_of(at)
    return '\128' .. sub(pack('>I8', at), 2)
end

-- Whether place `a` is before `b`. Compared by halves, because a whole place has more bits than a number here; and not as
-- texts, whose order depends on Redis's locale.
local function is_before(a, b)
    local a_high, a_low = unpack_bytes('>I4I4', a)
    local b_high, b_low = unpack_bytes('>I4I4', b)
    return a_high < b_high or (a_high == b_high and a_low < b_low)
end

-- Where a head's names end, and its queue. The last result is kept, because one head is mostly asked about several times in a row.
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

-- Answers the store's time, and what the clock says. The clock is Redis's, or the caller's in a test. The time is the clock
-- plus how far the caller knows it to have jumped back, but never before the latest time that the caller has seen or the last
-- commit, and after the versions of all jobs that are gone. If the store's description of itself is missing, Redis was emptied,
-- and the caller must make the store anew (`open.lua`) before anything is written: then there is no time, and the second value
-- is the error to answer.
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
    -- While time stands still (see below), each commit still gets a later time than the one before it: the order of a key's
    -- runs relies on that. An undivided store has room for 10,000 such commits. A test's clock is not moved: it stands when the
    -- test says so.
    if now == at and now > clocked and clock == '' then
        if PARTITIONS and now - clocked <= STAND or at >= lead and at - lead < ROOM / 2 then
            now = at + 1
        end
    end
    -- After a restart of Redis time stands still for a moment (`open.lua`). No server may take that for a clock that jumped back, or
    -- time would stay ahead for good: so the clock's reading is raised to match. Jobs that are gone meanwhile move time by a little.
    -- In a divided store time stands still in all partitions, and each may have been told the time of any other.
    local stood = now - lead
    if PARTITIONS and now - clocked <= STAND or now - clocked <= LEAD + ROOM and stood >= 0 and stood <= ROOM then
        raw = now - tonumber(ahead)
    end
    return now, raw
end

-- Refuses reads and writes while a commit over several partitions holds the lock: none may come between its look at the records
-- here and its writes. Answers false if there is no lock.
local function refusal()
    return LOCK and redis.error_reply('SEMELLOCK the partition is locked by commit ' .. LOCK)
end

-- A script that ends something begun earlier calls this before it writes. When its memory is full, Redis refuses a script only
-- at its first write, and only if that write may take memory; this one takes none.
local function insist()
    call('HDEL', BASE .. '!', 'none')
end

-- Writes a small key, so that the caller can wait until replicas confirm a write. It is kept for as long as anybody waits.
local function nudge()
    insist()
    call('SET', BASE .. '@', '', 'PX', 60000)
end

-- Parses a key's record: its version, how many live holders it has, these, and the ended ones. The holders stay packed until
-- they are needed (`holders_of`): mostly only the version changes.
local function parse_key(text)
    if not text then
        return { version = 0, text = false, live = {}, done = {}, moved = false }
    end
    -- With all fields set at once, so that the table never has to grow.
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

-- Reads the records with these full names together: a call for each would cost more than the reading itself.
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

-- Reads the records of one kind.
local function get_all(letter, names)
    local records, before = {}, BASE .. letter
    for i = 1, #names do
        records[i] = before .. names[i]
    end
    return get_named(records, 1, #records)
end

-- Reads the notes of these jobs. Few jobs have any, so one question for all of them comes first.
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
