-- Opens the store on a new connection of a server, and makes it if there is none. ARGV: the layout that the server knows, the
-- store's secret as it knows it, or a new one, the run of Redis; how many partitions the store must have, or nothing, the
-- layout of a divided store, the number of this partition; the latest time that the server has seen, clock, ahead, and the
-- latest time that it had seen before it met this run of Redis anywhere in the store.
-- Answers the layout, the secret, the number of partitions, and whether the store was made just now. If Redis is in another run
-- than before, which may be a replica that took over, time begins later than anything that the last run may have told and then
-- lost: so no version and no fence is given twice.
local fact = BASE .. '!'
-- Redis refuses what an account may not do only when a script does it, halfway through. So all commands are checked beforehand.
local USED = {
    { 'GET', fact }, { 'MGET', fact }, { 'GETRANGE', fact, '0', '7' }, { 'EXISTS', fact },
    { 'HGET', fact, 'at' }, { 'HMGET', fact, 'at' }, { 'HGETALL', fact }, { 'SMEMBERS', fact }, { 'SSCAN', fact, '0' },
    { 'ZRANGE', fact, '0', '0' }, { 'XRANGE', fact, '-', '+' }, { 'XLEN', fact }, { 'TIME' },
    { 'SET', fact, '' }, { 'MSET', fact, '' }, { 'MSETNX', fact, '' }, { 'DEL', fact }, { 'UNLINK', fact },
    { 'HSET', fact, 'at', '' }, { 'HDEL', fact, 'at' }, { 'HINCRBY', fact, 'at', '1' },
    { 'SADD', fact, '' }, { 'SREM', fact, '' }, { 'ZADD', fact, '0', '' }, { 'ZREM', fact, '' },
    { 'XADD', fact, '*', 'a', '' }, { 'XTRIM', fact, 'MAXLEN', '0' },
}
for at = 1, #USED do
    if not redis.acl_check_cmd(unpack(USED[at])) then
        return redis.error_reply('SEMELACL the account may not use ' .. USED[at][1] .. ' here: let it read and write under this prefix')
    end
end
-- More records of the log than a run can lose. As many numbers are skipped, so that a reader of a lost record goes on with the
-- new ones and misses none.
local LOST = 100000

-- The time to begin at, after `known`. All partitions share the latest time of any. If each began LEAD after that, every
-- restart of a node would take time further ahead of the clock; so in a divided store time begins no more than two such steps
-- ahead of the clock (but always ROOM after `known`), and nothing can have been told that is later than those. A clock that is
-- behind `known` by more than STAND was set back, and is ignored.
local function begin_behind(known)
    local later = known + LEAD
    if not call('HGET', fact, 'partitions') then
        return later
    end
    local clocked = tonumber(ARGV[9])
    if ARGV[8] == '' then
        local now = call('TIME')
        clocked = clocked + tonumber(now[1]) * 1000000 + tonumber(now[2])
    else
        clocked = clocked + tonumber(ARGV[8])
    end
    if known - clocked > STAND then
        return later
    end
    return max(known + ROOM, math.min(later, clocked + 2 * LEAD))
end

-- Begins a run of Redis. `seen`: the latest time that the server has seen; it is later than the one stored here if writes were lost.
local function begin_run(seen)
    local known = max(tonumber(call('HGET', fact, 'at') or 0), tonumber(seen))
    if known > 0 then
        local later = digits(begin_behind(known))
        -- Time stands still there until the clock has reached it (`time_of`): the clock has not jumped back.
        call('HSET', fact, 'at', later, 'lead', later)
    end
    if call('HGET', fact, 'records') then
        call('HINCRBY', fact, 'records', LOST)
    end
    for _, count in ipairs({ 'log', 'crossings' }) do
        if call('HGET', fact, count) then
            call('HINCRBY', fact, count, LOST)
        end
    end
    call('HSET', fact, 'run', ARGV[3])
end
-- The store's secret in this partition. A store that takes another's place (`inherit`) tells its partitions so one after the
-- other, the first one last. Until that one has the new secret, the others still count as parts of the old store, so a
-- take-over that is broken off leaves one whole store.
local function secret_here()
    local before = call('HGET', fact, 'before')
    if before and before == ARGV[2] then
        return before
    end
    return call('HGET', fact, 'secret')
end
local layout = call('HGET', fact, 'layout')
if not layout then
    if call('EXISTS', fact) == 1 then
        return redis.error_reply('SEMELLAYOUT what is under this prefix is not a store')
    end
    -- The log, the queues, the jobs: an emptied store has none of them. With any of them left, a new store's numbers would
    -- already be taken.
    if call('EXISTS', BASE .. 'e', BASE .. 'w', BASE .. 'j') > 0 then
        return redis.error_reply('SEMELHEAD what the store says of itself is gone, and others of its records are there')
    end
    local parts = ARGV[4] == '' and '1' or ARGV[4]
    layout = ARGV[1]
    if parts ~= '1' then
        layout = ARGV[5]
        call('HSET', fact, 'layout', layout, 'secret', ARGV[2], 'partitions', parts, 'partition', ARGV[6])
    else
        call('HSET', fact, 'layout', layout, 'secret', ARGV[2])
    end
    -- A store that was emptied during a run belongs to that run: any time that was seen may have been told by it.
    begin_run(ARGV[7])
    return { layout, ARGV[2], parts, '1' }
end
local parts = call('HGET', fact, 'partitions') or '1'
if ARGV[4] ~= '' and ARGV[4] ~= parts then
    -- The server itself refuses this, before anything is written.
    return { layout, secret_here(), parts, '0' }
end
if call('HGET', fact, 'run') ~= ARGV[3] then
    begin_run(ARGV[10])
end
return { layout, secret_here(), parts, '0' }
