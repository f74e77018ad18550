-- New jobs that nothing else of a commit is about come ready-made: their records by their whole names, and where they are filed. One is
-- put down if none of its records is there, neither its id's nor its key's: then all is as it was when it was decided on.

-- So many are put down at once: what a call takes is bounded.
local PIECE = 300

-- Puts down so many of them, whose arguments begin at `from`, `width` each, and says of which that could not be done: the number of
-- each, the first having the number `first`.
local function put_down(from, jobs, width, first, refused)
    for piece = 0, jobs - 1, PIECE do
        local n = math.min(PIECE, jobs - piece)
        local at = from + piece * width
        if call('MSETNX', unpack(ARGV, at, at + n * width - 1)) == 0 then
            for i = piece, piece + n - 1 do
                if call('MSETNX', unpack(ARGV, at, at + width - 1)) == 0 then
                    refused[#refused + 1] = first + i
                end
                at = at + width
            end
        end
    end
end

-- Files those that were put down, one by one, where not all of them were.
local function file_others(from, jobs, width, first, is_refused)
    for i = 0, jobs - 1 do
        if not is_refused[first + i] then
            local id, h = sub(ARGV[from + i * width], #BASE + 2), ARGV[from + i * width + 1]
            local _, queue = names_of(h)
            file(id, nil, h, place)
            place('j', id, true)
            count(queue, byte(h, 2), 1)
            count(queue, 'c', 1)
        end
    end
end

-- Where what is said of so many of them ends, if it begins at `at`.
local function behind_fresh(at, keyed, keyless, sets, queues)
    at = at + 6 * keyed + 4 * keyless
    for _ = 1, sets do
        at = at + 2 + 2 * tonumber(ARGV[at + 1])
    end
    return at + 3 * queues
end

-- Puts down and files what begins at `at`: so many jobs with a key, and so many without one; the sets they go to (its name, how many,
-- for each a score and a member); how many each queue gets (its name, a state, how many). Answers the numbers of those that are
-- refused. It writes as it goes: whatever may fail has to come before.
local function put_fresh(at, keyed, keyless, sets, queues)
    local refused, is_refused, second = {}, {}, at + 6 * keyed
    put_down(at, keyed, 6, 1, refused)
    put_down(second, keyless, 4, keyed + 1, refused)
    if #refused > 0 then
        for i = 1, #refused do
            is_refused[refused[i]] = true
        end
        file_others(at, keyed, 6, 1, is_refused)
        file_others(second, keyless, 4, keyed + 1, is_refused)
    end
    at = second + 4 * keyless
    for _ = 1, sets do
        local last = at + 1 + 2 * tonumber(ARGV[at + 1])
        if #refused == 0 then
            for piece = at + 2, last, 2000 do
                call('ZADD', ARGV[at], unpack(ARGV, piece, math.min(piece + 1999, last)))
            end
        end
        at = last + 1
    end
    for _ = 1, queues do
        if #refused == 0 then
            local queue, n = ARGV[at], tonumber(ARGV[at + 2])
            count(queue, tonumber(ARGV[at + 1]), n)
            count(queue, 'c', n)
        end
        at = at + 3
    end
    return refused
end
