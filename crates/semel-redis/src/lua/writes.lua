-- The writes that commits, claims and housekeeping share. Places in sorted sets and holders of keys are gathered in memory and
-- written once, at the end (`flush`); the last value given for each counts.

-- The store's time.
local NOW = 0
-- How long the record of a key without holders is kept, in milliseconds: a decision that is still on its way must not mistake a
-- new record for the one it has read.
local KEY_KEPT = 3600000
-- How long the outcome of a request is remembered, in milliseconds: longer than any caller asks for it.
local MARK_KEPT = 3600000

local HEADS, BODIES, KEYS_OF = BASE .. 'h', BASE .. 'b', BASE .. 'k'

local heads, keys, texts, pending, counts, crowded = {}, {}, {}, {}, {}, {}
-- What only a single write concerns need not be found again, and goes to Redis as it was gathered: `records` has each record behind
-- its full name; `leaving` has the members to remove from each sorted set, and `entering` those to add, each behind its score.
local records, leaving, entering = {}, {}, {}

-- Reads heads that are known to be needed, all at once.
local function fetch_heads(ids)
    local found = get_all('h', ids)
    for i = 1, #ids do
        heads[ids[i]] = found[i]
    end
end

local function fetch_keys(wanted)
    local found = get_all('k', wanted)
    for i = 1, #wanted do
        keys[wanted[i]] = parse_key(found[i])
    end
end

local function head_of(id)
    local h = heads[id]
    if h == nil then
        h = call('GET', HEADS .. id)
        heads[id] = h
    end
    return h
end

local function put_head(id, h)
    heads[id] = h
    texts[HEADS .. id] = h
end

local function key_record(key)
    local found = keys[key]
    if not found then
        found = parse_key(call('GET', KEYS_OF .. key))
        keys[key] = found
    end
    return found
end

local function is_in(list, id)
    for at = 1, #list do
        if list[at] == id then
            return true
        end
    end
    return false
end

local function take_out(list, id)
    for at = 1, #list do
        if list[at] == id then
            table.remove(list, at)
            return true
        end
    end
    return false
end

-- Moves a key's version, as every write of one of its holders does.
local function touch_key(found, version)
    found.version = max(found.version + 1, version)
    found.moved = true
end

-- Removes a job from the holders of its key, and answers what is known of that key; nil where it has no record. None is made then:
-- it would have no holders, and a new job of the same commit, which comes ready-made (`fresh.lua`), may be about to bring its own.
local function let_go(key, id)
    local found = key_record(key)
    if not found.text and not found.moved then
        return nil
    end
    holders_of(found)
    take_out(found.live, id)
    take_out(found.done, id)
    return found
end

local function place(set, member, is_in)
    local members = pending[set]
    if not members then
        members = {}
        pending[set] = members
    end
    members[member] = is_in
end

local function list_of(lists, set)
    local list = lists[set]
    if not list then
        list = {}
        lists[set] = list
    end
    return list
end

local SETS = { [@SLOT_TIMER] = 't', [@SLOT_LEASE] = 'a', [@SLOT_DONE] = 'd', [KEPT] = 'f' }

-- Where a head is filed: the sorted set, and the member there. nil for a head that is filed nowhere.
local function filed(id, h)
    local slot = byte(h, 1)
    if slot == @SLOT_READY then
        local _, queue = names_of(h)
        local member = sub(h, 4, 4) .. sub(h, @AT_PLACE) .. id
        if flag(h, @FLAG_LIMITED) then
            return 'l' .. queue .. sub(h, @AT_LIMIT), member
        end
        return 'r' .. queue, member
    end
    local set = SETS[slot]
    if set then
        return set, sub(h, @AT_PLACE) .. id
    end
    return nil
end

-- Like `place`, for a job that no other write concerns.
local function place_alone(set, member, is_in)
    if byte(set) == 108 then
        -- The set of a limit: `flush` must see whether its first member changes.
        place(set, member, is_in)
    elseif is_in then
        local list = list_of(entering, set)
        local n = #list
        list[n + 1], list[n + 2] = 0, member
    else
        local list = list_of(leaving, set)
        list[#list + 1] = member
    end
end

-- Moves a job from the places of its head `old` to those of `new`, by calls of `put`; either head may be nil.
local function file(id, old, new, put)
    local from, was, to, is
    if old then
        from, was = filed(id, old)
    end
    if new then
        to, is = filed(id, new)
    end
    if from and (from ~= to or was ~= is) then
        put(from, was, false)
    end
    if to and (from ~= to or was ~= is) then
        put(to, is, true)
    end
    local expired, expires = NONE, NONE
    if old then
        expired = sub(old, @AT_EXPIRY)
    end
    if new then
        expires = sub(new, @AT_EXPIRY)
    end
    if expired ~= expires then
        if expired ~= NONE then
            put('x', expired .. id, false)
        end
        if expires ~= NONE then
            put('x', expires .. id, true)
        end
    end
    local was_dead, is_dead = old and flag(old, @FLAG_DEAD), new and flag(new, @FLAG_DEAD)
    if was_dead and not is_dead then
        put('z', id, false)
    elseif is_dead and not was_dead then
        put('z', id, true)
    end
end

local function count(queue, what, n)
    local of = counts[queue]
    if not of then
        of = {}
        counts[queue] = of
    end
    of[what] = (of[what] or 0) + n
end

local function note_gone(h)
    GONE = max(GONE, number(h, 5))
end

-- Has the ended holders of a key looked over each time their number has doubled.
local function note_crowd(key, n)
    if n >= @CROWD_MIN and bit.band(n, n - 1) == 0 then
        crowded[key] = true
    end
end

local function insert(id, h, body)
    put_head(id, h)
    texts[BODIES .. id] = body
    file(id, nil, h, place)
    place('j', id, true)
    local _, queue = names_of(h)
    count(queue, byte(h, 2), 1)
    count(queue, 'c', 1)
    local key = key_of(h)
    if key then
        local found = key_record(key)
        touch_key(found, number(h, 5))
        local list = holders_of(found).live
        if byte(h, 1) == @SLOT_DONE then
            list = found.done
        end
        list[#list + 1] = id
        if list == found.done then
            note_crowd(key, #list)
        end
    end
end

-- Deletes a job; or keeps its head, for its key alone, until the place `kept` unless that is `NONE`.
local function forget(id, kept)
    local old = head_of(id)
    if not old then
        return
    end
    note_gone(old)
    if byte(old, 1) ~= KEPT then
        local _, queue = names_of(old)
        count(queue, byte(old, 2), -1)
        count(queue, 'p', 1)
    end
    texts[BODIES .. id] = false
    call('DEL', BASE .. 'n' .. id)
    local spent = call('SMEMBERS', BASE .. 'y' .. id)
    for at = 1, #spent do
        call('DEL', BASE .. 's' .. spent[at])
    end
    if #spent > 0 then
        call('DEL', BASE .. 'y' .. id)
    end
    if kept ~= NONE then
        local new = char(KEPT) .. sub(old, 2, 2) .. char(bit.band(byte(old, 3), @ALL_BUT_DEAD)) .. sub(old, 4, 32) .. kept .. sub(old, 41)
        file(id, old, new, place)
        put_head(id, new)
        return
    end
    file(id, old, nil, place)
    place('j', id, false)
    heads[id] = false
    texts[HEADS .. id] = false
    local key = key_of(old)
    local found = key and let_go(key, id)
    if found then
        touch_key(found, NOW)
    end
end

-- If this job is its key's only live holder, makes it an ended one. Answers whether it did. The holders are not parsed for that.
local function end_only(found, id)
    local text = found.text
    if found.live or not text or unpack_bytes('>I4', text, 9) ~= 1 or sub(text, 13, 28) ~= id then
        return false
    end
    found.text = sub(text, 1, 8) .. '\0\0\0\0' .. sub(text, 29) .. id
    return true
end

-- Replaces a head. `kept`: until when it stays if it is already kept for its key alone. `is_alone`: no other write of the batch
-- changes this job's head.
local function update(id, new, kept, is_alone)
    local old = head_of(id)
    if not old then
        return
    end
    local key, is_held = key_of(new), flag(old, @FLAG_KEY)
    if byte(old, 1) == KEPT then
        if not key or kept == NONE then
            forget(id, NONE)
            if not key then
                -- Ended holders that were left out in favour of a later one are released with it.
                holders_of(key_record(key_of(old))).done = {}
            end
            return
        end
        note_gone(new)
        -- Whatever the flags that came with it say: a head that is kept for its key alone is no dead letter.
        new = char(KEPT) .. sub(new, 2, 2) .. char(bit.band(byte(new, 3), @ALL_BUT_DEAD)) .. sub(new, 4, 32) .. kept .. sub(new, 41)
        file(id, old, new, place)
        put_head(id, new)
        touch_key(key_record(key), number(new, 5))
        return
    end
    if is_alone then
        file(id, old, new, place_alone)
        heads[id] = new
        local n = #records
        records[n + 1], records[n + 2] = HEADS .. id, new
    else
        file(id, old, new, place)
        put_head(id, new)
    end
    if byte(old, 2) ~= byte(new, 2) then
        local _, queue = names_of(new)
        count(queue, byte(old, 2), -1)
        count(queue, byte(new, 2), 1)
    end
    if key then
        local found = key_record(key)
        touch_key(found, number(new, 5))
        -- A holder keeps its place among the others: decisions see them in the order in which they came.
        if byte(new, 1) ~= @SLOT_DONE then
            if is_held and byte(old, 1) ~= @SLOT_DONE then
                return
            end
            holders_of(found)
            if not is_in(found.live, id) then
                take_out(found.done, id)
                found.live[#found.live + 1] = id
            end
            return
        end
        if end_only(found, id) then
            note_crowd(key, (#found.text - 12) / 16)
            return
        end
        holders_of(found)
        if take_out(found.live, id) or take_out(found.done, id) then
            -- One that was left out in favour of a later one does not come back by being written.
            found.done[#found.done + 1] = id
            note_crowd(key, #found.done)
        end
    elseif is_held then
        local found = let_go(key_of(old), id)
        if found then
            -- Ended holders that were left out in favour of a later one are released with it.
            found.done = {}
            touch_key(found, 0)
        end
    end
end

-- Writes what was gathered for a key. A record without holders is kept for KEY_KEPT.
local function put_key(key, found)
    local text
    if found.live then
        text = pack('>I8I4', found.version, #found.live) .. table.concat(found.live) .. table.concat(found.done)
    else
        text = pack('>I8', found.version) .. sub(found.text, 9)
    end
    if #text == 12 then
        call('SET', KEYS_OF .. key, text, 'PX', KEY_KEPT)
    else
        texts[KEYS_OF .. key] = text
    end
end

-- The first member of a limit's set, which is the first ready job under that limit in its queue; nil for other sets.
local function first_of(set)
    if byte(set) == 108 then
        return call('ZRANGE', BASE .. set, 0, 0)[1]
    end
    return nil
end

-- Writes everything that was gathered, and a record of the log if there are events.
local function flush(events)
    for key, found in pairs(keys) do
        if found.moved then
            put_key(key, found)
        end
    end
    local set, deleted = records, {}
    local last = #set
    for name, text in pairs(texts) do
        if text then
            set[last + 1], set[last + 2] = name, text
            last = last + 2
        else
            deleted[#deleted + 1] = name
        end
    end
    in_pieces(set, function(from, to)
        call('MSET', unpack(set, from, to))
    end)
    in_pieces(deleted, function(from, to)
        call('DEL', unpack(deleted, from, to))
    end)
    local firsts_were = {}
    for set, members in pairs(pending) do
        local gone, added = list_of(leaving, set), list_of(entering, set)
        firsts_were[set] = first_of(set)
        for member, is_in in pairs(members) do
            if is_in then
                added[#added + 1] = 0
                added[#added + 1] = member
            else
                gone[#gone + 1] = member
            end
        end
    end
    for set, gone in pairs(leaving) do
        in_pieces(gone, function(from, to)
            call('ZREM', BASE .. set, unpack(gone, from, to))
        end)
    end
    for set, added in pairs(entering) do
        in_pieces(added, function(from, to)
            call('ZADD', BASE .. set, unpack(added, from, to))
        end)
    end
    for set in pairs(pending) do
        local first_was, first_is = firsts_were[set], first_of(set)
        -- The queue's set `i` has the first job of each limit, followed by the limit: there claims find the few limits that
        -- matter to them.
        if first_was ~= first_is then
            local firsts, lane = BASE .. 'i' .. sub(set, 2, -9), sub(set, -8)
            if first_was then
                call('ZREM', firsts, first_was .. lane)
            end
            if first_is then
                call('ZADD', firsts, 0, first_is .. lane)
            end
        end
    end
    for queue, of in pairs(counts) do
        call('SADD', BASE .. 'w', queue)
        for what, n in pairs(of) do
            if n ~= 0 then
                call('HINCRBY', BASE .. 'c' .. queue, what, n)
            end
        end
    end
    if #events > 0 then
        local of = digits(RECORDS + 1)
        if PARTITIONS then
            -- Redis's own clock: by it the records of all partitions are put in one order.
            local at = call('TIME')
            call('XADD', BASE .. 'e', of .. '-1', 'a', digits(NOW), 't', digits(at[1] * 1000000 + at[2]), 'e', events)
        else
            call('XADD', BASE .. 'e', of .. '-1', 'a', digits(NOW), 'e', events)
        end
        call('HSET', BASE .. '!', 'at', digits(NOW), 'gone', digits(GONE), 'records', of)
    else
        call('HSET', BASE .. '!', 'at', digits(NOW), 'gone', digits(GONE))
    end
end

-- The remembered outcome of this request; nil if it was not served before. If a later request of the same sender was served,
-- the second value is an error.
local function mark_of(name, turn)
    local mark = call('GET', BASE .. 'm' .. name)
    if not mark then
        return nil
    end
    local last = number(mark)
    if last > turn then
        return nil, redis.error_reply('SEMELOLD this request was followed by another')
    end
    if last == turn then
        return sub(mark, 9)
    end
    return nil
end

-- Ends a commit over several partitions here: notes it as the last one that this partition shared with each other one taking
-- part, and unlocks this partition. Two partitions that took part in a commit note the same number for each other: by a
-- difference, a reader of both finds that it read one before the commit and the other after it.
local function end_crossing(turn)
    local found = call('HMGET', BASE .. '!', 'with', 'pairs')
    local with, pairs_of = found[1] or '', found[2] or string.rep(NONE, tonumber(PARTITIONS or 0))
    for at = 1, #with, 2 do
        local other = unpack_bytes('>I2', with, at)
        pairs_of = sub(pairs_of, 1, 8 * other) .. pack('>I8', turn) .. sub(pairs_of, 8 * other + 9)
    end
    call('HSET', BASE .. '!', 'pairs', pairs_of, 'crossed', digits(turn))
    call('HDEL', BASE .. '!', 'lock', 'with')
end

local function set_mark(name, turn, said)
    call('SET', BASE .. 'm' .. name, pack('>I8', turn) .. said, 'PX', MARK_KEPT)
end

local function begin_writes(now)
    NOW = now
end
