-- What a program says when it connects. ARGV: the layout it knows, a secret if there is none, the run of the server; into how many
-- partitions the store is to be divided, if that is said, the layout of one that is, and which partition this is; the latest time that the
-- program has seen, clock, ahead, and the latest time that it had seen before it met this run anywhere in the store.
-- Answers the layout, the secret, into how many it is, and whether it was made just now. In another run of the server than the last, which
-- may be a replica that took over, time begins later than anything that run may have told and forgotten: so no version and no fence is given
-- twice.
local fact = BASE .. '!'
-- What an account may not do is refused when it is done, in the middle of a script: so it is asked beforehand.
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
-- More records of the log than a run loses: whoever has read one of these goes on with what comes now, and misses nothing.
local LOST = 100000

-- When time begins behind `known`. Partitions share the latest time of all. If each began so much later than that, it would run away from
-- the clock with every node that is started anew; so all of them together are ahead by no more than two such steps, behind which
-- nothing can have been told. Where the clock is behind by more than that it was set back, and says nothing.
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

-- What this program has seen is later than what is known here where that was lost.
local function begin_run(seen)
    local known = max(tonumber(call('HGET', fact, 'at') or 0), tonumber(seen))
    if known > 0 then
        local later = digits(begin_behind(known))
        -- Time stands there until the clock has come to it: it is no clock that has jumped back.
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
-- The store's secret as it stands here. One that takes another's place tells its partitions so one after the other, the first one last: until
-- that one has it, the others are what they were before, and whoever broke off in between has left one store.
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
    -- Its log, its queues, its jobs: one that was emptied has none of them. Beside them the numbers of a new one would be taken.
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
    -- One that was emptied in the midst of a run is that run's: whatever was seen was told by it.
    begin_run(ARGV[7])
    return { layout, ARGV[2], parts, '1' }
end
local parts = call('HGET', fact, 'partitions') or '1'
if ARGV[4] ~= '' and ARGV[4] ~= parts then
    -- Who asks is to say so himself, before anything is written.
    return { layout, secret_here(), parts, '0' }
end
if call('HGET', fact, 'run') ~= ARGV[3] then
    begin_run(ARGV[10])
end
return { layout, secret_here(), parts, '0' }
