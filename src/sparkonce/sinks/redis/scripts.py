"""The scripts that run inside Redis.

A script is atomic: no other command runs at the same time, and after a crash, either all of its effects remain or none.

A staged chunk begins with eight digits: the number of its values that are already applied. The rest is MessagePack: a
command's name, the number of values per command, and all values. If the name is missing, each value is a whole command.
The last element of a complete list is `END`. Once only `END` is left, all chunks have been applied.

See `sparkonce.sinks.redis.names.LedgerEntry` for an entry of the ledger.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

END = "end"

COMMAND_WEIGHT = 4
"""The number of values that a whole command counts as."""

_ENTRY = r"""
local function read(entry)
  return string.match(entry, '^(%u):(%d+):(%d+):(%d+):([^:]*):?(%x*)$')
end
local function put(state, begun, seen, prepared, slots, term)
  redis.call('HSET', KEYS[1], ARGV[1], table.concat({state, begun, seen, prepared, slots, term}, ':'))
end
-- Another one after each restart, by run_id, and each time that the server becomes master, by master_replid.
local function term()
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local reign = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
  return run and reign and run .. reign
end
local function now()
  local time = redis.call('TIME')
  return string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
end
local function number(name)
  return tonumber(redis.call('HGET', KEYS[1], name) or '0')
end
"""

_MAY = r"""
-- What a script has done stays done when a later command of it is refused, so it asks before. Redis 6 cannot be asked.
local function refused(...)
  for _, command in ipairs(redis.acl_check_cmd and {...} or {}) do
    if not redis.acl_check_cmd(unpack(command)) then
      return redis.error_reply("NOPERM this user has no permissions to run '" .. command[1] .. "'")
    end
  end
end
"""

_APPLY = r"""
-- Lua passes some 8,000 arguments at most. Only RPUSH can have more, and can be had in parts.
local function run(command)
  local count = #command
  if count <= 4000 then return redis.pcall(unpack(command)) end
  local answer
  for first = 3, count, 4000 do
    answer = redis.pcall(command[1], command[2], unpack(command, first, math.min(first + 3999, count)))
    if type(answer) == 'table' and answer.err then return answer end
  end
  return answer
end
local function apply(chunk)
  local skip = tonumber(string.sub(chunk, 1, 8))
  local _, verb, arity, values = cmsgpack.unpack_limit(chunk, 3, 8)
  local count = #values
  for first = skip + 1, count, arity do
    local answer
    if verb == '' then
      answer = run(values[first])
    else
      answer = redis.pcall(verb, unpack(values, first, math.min(first + arity - 1, count)))
    end
    if type(answer) == 'table' and answer.err then
      local command, key = verb, values[first]
      if verb == '' then command, key = values[first][1], values[first][2] end
      return first - 1, skip, answer.err, key, command
    end
  end
  return nil, (count - skip) * (verb == '' and COMMAND_WEIGHT or 1)
end
""".replace("COMMAND_WEIGHT", str(COMMAND_WEIGHT))


@dataclass(frozen=True, slots=True)
class Script:
    """The Lua source of a script, and its SHA-1 in hexadecimal, under which Redis stores the script."""

    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


BEGIN = Script(
    _ENTRY
    + r"""
-- KEYS: ledger. ARGV: transaction, batch, ledger's time to live in ms.
if tonumber(ARGV[2]) < number('#floor') then return {'old', 0} end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return {'taken', 0} end
redis.call('HSETNX', KEYS[1], '#commits', 0)
local seen = redis.call('HGET', KEYS[1], '#commits')
put('O', now(), seen, 0, '')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'O', tonumber(seen)}
"""
)
"""Opens a transaction. Returns ``O`` and the number of the query's commits; otherwise ``old`` or ``taken``."""

STAGE = Script(
    r"""
-- KEYS: list[, ledger]. ARGV: transaction, how many elements are there, time to live in ms, elements.
if KEYS[2] then
  local entry = redis.call('HGET', KEYS[2], ARGV[1])
  if not entry or string.sub(entry, 1, 1) ~= 'O' then return -1 end
end
local there = tonumber(ARGV[2])
if redis.call('LLEN', KEYS[1]) ~= there then return -2 end
for first = 4, #ARGV, 1000 do
  redis.call('RPUSH', KEYS[1], unpack(ARGV, first, math.min(first + 999, #ARGV)))
end
if there == 0 then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return there + #ARGV - 3
"""
)
"""Adds chunks to a list. Returns their number; -1 if the transaction is not open, -2 if earlier chunks are missing."""

PREPARE = Script(
    _ENTRY
    + r"""
-- KEYS: ledger[, list]. ARGV: transaction, hash slots, how many elements are there, END, time to live in ms.
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then return 'absent' end
local state, begun, seen = read(entry)
if state ~= 'O' then return state end
if KEYS[2] then
  if redis.call('LLEN', KEYS[2]) ~= tonumber(ARGV[3]) then return 'incomplete' end
  redis.call('RPUSH', KEYS[2], ARGV[4])
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
end
put('P', begun, seen, now(), ARGV[2], term())
return 'P'
"""
)
"""Closes the list and marks the transaction as prepared. Returns ``P``, or the state that prevents it."""

DECIDE = Script(
    _ENTRY
    + r"""
-- KEYS: ledger[, list]. ARGV: transaction, batch, commits that must be known, END, mode, ledger's time to live in ms.
-- mode: single; check, go, give up (cluster: its lists are in other hash slots, and are checked in between).
local commits = redis.call('HGET', KEYS[1], '#commits')
if not commits then return {'no ledger', 0} end
if tonumber(commits) < tonumber(ARGV[3]) then return {'restored', tonumber(commits)} end
redis.call('PEXPIRE', KEYS[1], ARGV[6])
local entry = redis.call('HGET', KEYS[1], ARGV[1])
local mode, state, begun, seen, prepared, slots, prepared_in = ARGV[5]
if entry then
  state, begun, seen, prepared, slots, prepared_in = read(entry)
elseif tonumber(ARGV[2]) < number('#floor') then
  return {'forgotten', 0}
else
  state, begun, seen, prepared, slots = 'absent', now(), 0, 0, ''
end
if mode == 'single' and (state == 'absent' or state == 'O') then
  put('A', begun, seen, prepared, slots)
  redis.call('UNLINK', KEYS[2])
elseif state == 'P' and mode == 'single' then
  if redis.call('LINDEX', KEYS[2], -1) ~= ARGV[4] then
    put('A', begun, seen, prepared, slots)
    redis.call('UNLINK', KEYS[2])
    return {'expired', 0}
  end
  redis.call('PERSIST', KEYS[2])
  state = 'C'
  put(state, begun, seen, prepared, slots)
elseif state == 'P' and mode == 'go' then
  state = 'C'
  put(state, begun, seen, prepared, slots)
elseif state == 'P' and mode == 'give up' then
  -- Only the process that has written it, and was master ever since, can say that nothing was written since.
  if prepared_in ~= term() then return {'not sure', 0, slots} end
  put('A', begun, seen, prepared, slots)
  return {'expired', 0, slots}
end
if state == 'absent' then return {state, 0} end
return {state, tonumber(now()) - tonumber(prepared), slots}
"""
)
"""Starts a commit, after which an abort is impossible. Returns the state and, if needed, the age and hash slots."""

APPLY = Script(
    _MAY
    + _APPLY
    + r"""
-- KEYS: list. ARGV: END, how many values are enough for one call.
local refusal = refused({'LTRIM', KEYS[1], 1, -1}, {'LSET', KEYS[1], 0, ''})
if refusal then return refusal end
local done, enough = 0, tonumber(ARGV[2])
repeat
  local chunk = redis.call('LINDEX', KEYS[1], 0)
  if not chunk then return {'absent', done} end
  if chunk == ARGV[1] then return {'end', done} end
  local failed, count, err, key, command = apply(chunk)
  if failed then
    if failed > count then
      redis.call('LSET', KEYS[1], 0, string.format('%08d', failed) .. string.sub(chunk, 9))
    end
    return {'failed', done, err, key, command}
  end
  redis.call('LTRIM', KEYS[1], 1, -1)
  done = done + count
until done >= enough
return {'more', done}
"""
)
"""Applies the next chunks and deletes them in the same step. Returns ``more``, ``end``, ``absent`` or ``failed``."""

APPLY_DIRECT = Script(
    _APPLY
    + r"""
-- KEYS: any key of the hash slot. ARGV: chunks.
for index = 1, #ARGV do
  local failed, _, err, key, command = apply(ARGV[index])
  if failed then return {'failed', index, err, key, command} end
end
return {'end', #ARGV}
"""
)
"""Applies chunks that are not staged."""

CONCLUDE = Script(
    _MAY
    + _ENTRY
    + r"""
-- KEYS: ledger[, list]. ARGV: transaction, END, ledger's time to live in ms.
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then return {'absent', 0} end
local state, begun, seen, prepared, slots = read(entry)
if state == 'D' then return {'D', number('#commits')} end
if state ~= 'C' then return {state, 0} end
local refusal = refused({'UNLINK', KEYS[1]}, {'HSET', KEYS[1], 'x', '1'}, {'HINCRBY', KEYS[1], 'x', 1})
if refusal then return refusal end
if KEYS[2] then
  if redis.call('LINDEX', KEYS[2], 0) ~= ARGV[2] then return {'incomplete', 0} end
  redis.call('UNLINK', KEYS[2])
end
put('D', begun, seen, prepared, slots)
local commits = redis.call('HINCRBY', KEYS[1], '#commits', 1)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'committed', commits}
"""
)
"""Ends a commit once every list is finished. Returns ``committed`` or ``D``, and the number of the query's commits."""

CLEANED = Script(
    _ENTRY
    + r"""
-- KEYS: ledger. ARGV: transaction.
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then return 0 end
local state, begun, seen, prepared = read(entry)
if state ~= 'D' and state ~= 'A' then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1]) -- see ABORT
put(state, begun, seen, prepared, '')
return 1
"""
)
"""Records that the lists of an ended transaction have been deleted."""

ABORT = Script(
    _ENTRY
    + r"""
-- KEYS: ledger[, list]. ARGV: transaction, batch, hash slots that hold staged rows if the ledger does not say so.
local entry = redis.call('HGET', KEYS[1], ARGV[1])
local state, begun, seen, prepared, slots
if entry then
  state, begun, seen, prepared, slots = read(entry)
  if state == 'C' or state == 'D' then return {state, ''} end
  if state == 'O' then slots = ARGV[3] end
elseif not redis.call('HGET', KEYS[1], '#commits') or tonumber(ARGV[2]) < number('#floor') then
  return {'absent', ''}
else
  begun, seen, prepared, slots = now(), 0, 0, ARGV[3]
end
if KEYS[2] then redis.call('UNLINK', KEYS[2]) end
-- When memory is full a script may not begin with HSET. It may begin with this, and go on with anything.
redis.call('HDEL', KEYS[1], ARGV[1])
put('A', begun, seen, prepared, slots)
return {'A', slots}
"""
)
"""Aborts. Returns ``A`` with the hash slots that may still have staged rows, ``absent``, or the state that prevents it.

The ledger keeps these hash slots until `CLEANED`, because the driver may be killed before it has deleted the rows.
"""

RAISE_FLOOR = Script(
    r"""
-- KEYS: ledger. ARGV: batch.
local floor = tonumber(redis.call('HGET', KEYS[1], '#floor') or '0')
if tonumber(ARGV[1]) > floor and redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('HSET', KEYS[1], '#floor', ARGV[1])
end
return 1
"""
)
"""Records that batches below this one may be forgotten."""

PROBE = Script(
    r"""
-- KEYS: one that nobody else has. ARGV: whether rows are to be staged.
local failed
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err and not failed then failed = {(...), answer.err} end
end
if ARGV[1] == '1' then
  for _, command in ipairs({
    {'TIME'}, {'INFO', 'server'}, {'HSET', KEYS[1], 'x', '1'}, {'PERSIST', KEYS[1]}, {'PEXPIRE', KEYS[1], 60000},
    {'HSETNX', KEYS[1], 'y', '1'}, {'HEXISTS', KEYS[1], 'y'}, {'HINCRBY', KEYS[1], 'y', 1}, {'HDEL', KEYS[1], 'y'},
    {'EXISTS', KEYS[1]}, {'UNLINK', KEYS[1]}, {'RPUSH', KEYS[1], 'x', 'y'}, {'LLEN', KEYS[1]},
    {'LSET', KEYS[1], 0, 'z'}, {'LINDEX', KEYS[1], -1}, {'LTRIM', KEYS[1], 1, -1}, {'UNLINK', KEYS[1]},
  }) do try(unpack(command)) end
end
return failed or cmsgpack.pack(1)
"""
)
"""Tries each command that the scripts use, and cleans up. Returns the first rejected command, and the reason."""

ALL = (BEGIN, STAGE, PREPARE, DECIDE, APPLY, APPLY_DIRECT, CONCLUDE, CLEANED, ABORT, RAISE_FLOOR, PROBE)
BY_SHA = {script.sha: script for script in ALL}
