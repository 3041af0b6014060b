"""Where everything of a run lies: the whole state is two arrays, so that compiled code passes two pointers.

`s` holds int64 numbers, `b` uint32 ones: blocks, keys and what refers to them. In plain Python both may be lists. Both
are divided into regions of records; a record is named by where it begins, and a field is a small number to add to that.
0 names no record: both arrays begin with something else. All names of fields and regions are here.
"""

from __future__ import annotations

from typing import Final

NONE: Final = -1
"""An unknown time or count (`NULL` of the tables)."""
NEVER: Final = (1 << 63) - 1
"""The end of a server that does nothing."""
HORIZON: Final = (1 << 63) - (1 << 55)
"""A time from which on the run is abandoned: adding a step could overflow (ST-REL-001)."""

# What the kernel comes back with.
FINISHED: Final = 0
LOGS_FULL: Final = 1
PROGRESS: Final = 2
OVERFLOW: Final = 3
# The same with a lifecycle policy: it has its turn; requests were admitted; a server can start nothing although requests wait;
# a command was obeyed; the only request of a server was preempted, and nothing is scheduled.
POLICY: Final = 4
ADMITTED: Final = 5
STUCK: Final = 6
OBEYED: Final = 7
ALONE: Final = 8

# The head of `s`: settings, where regions begin, counters.
NOW: Final = 1
SERVERS: Final = 2
BLOCK_SIZE: Final = 3
MOST_REQUESTS: Final = 4
MOST_TOKENS: Final = 5
THRESHOLD: Final = 6
THRESHOLD_ALWAYS: Final = 7
CHUNKED: Final = 8
CACHING: Final = 9
WATERMARK: Final = 10
RESERVE: Final = 11
PRIORITY_ORDER: Final = 12
ROUTING: Final = 13
NEXT_SERVER: Final = 14
DETAIL: Final = 15
DONE: Final = 16
PAUSE_AT: Final = 17
OVERFLOWED: Final = 18
EVENT0: Final = 19
SERVER0: Final = 20
SERVERS_END: Final = 21
EDGE0: Final = 22
GROUP_OF0: Final = 23
GROUP0: Final = 24
HOLD0: Final = 25
MISSING_OF_GROUP0: Final = 26
ARRIVALS0: Final = 27
ARRIVALS_END: Final = 28
ARRIVALS_AT: Final = 29
UNSENT0: Final = 30
UNSENT_END: Final = 31
UNSENT_AT: Final = 32
THINK: Final = 33
TIMERS0: Final = 34
TIMERS: Final = 35
INSTANT0: Final = 36
INSTANT_END: Final = 37
SUBMITTED0: Final = 38
SUBMISSIONS: Final = 39
TIME: Final = 41
KIND: Final = 42
INTS0: Final = 43
INTS_END: Final = 44
GEOMETRY0: Final = 45
STEP_LOG0: Final = 46
STEP_LOG_AT: Final = 47
STEP_LOG_END: Final = 48
RUN_LOG0: Final = 49
RUN_LOG_AT: Final = 50
RUN_LOG_END: Final = 51
LONGEST_RUN: Final = 52
STEP_ROOM: Final = 53
RUN_ROOM: Final = 54
STATIC: Final = 55
RANKED_BY: Final = 56
TWINS: Final = 57
ASYNCHRONOUS: Final = 58
SLOTS: Final = 59
# With a lifecycle policy: when it is next to have its turn if nothing else happens, what it was not told yet, whether it must
# have its turn in every instant, and whether it wants to be told of pressure.
DRIVEN: Final = 60
ALARM: Final = 61
NEWS0: Final = 62
NEWS_AT: Final = 63
EVERY_INSTANT: Final = 64
TELL_PRESSURE: Final = 65
# The server that is started next in this instant; 0 between instants.
STARTING: Final = 66
# A command: what, for which server, how many numbers are listed in `b`, a flag; and the answer.
COMMAND: Final = 67
SUBJECT: Final = 68
LISTED: Final = 69
FLAG: Final = 70
ANSWER_COUNT: Final = 71
LIST0: Final = 72
# Of a command about keys: where they are listed in `b`, and what is added to them; of its answer, how many of the blocks nobody holds.
KEYS_AT: Final = 73
KEYS_SALT: Final = 74
ANSWER_IDLE: Final = 75
HEAD_SIZE: Final = 80

# An event: an operation of an instance.
READY: Final = 0
RELEASED: Final = 1
SUBMITTED: Final = 2
SCHEDULED: Final = 3
FIRST_TOKEN: Final = 4
ENDED: Final = 5
CACHED: Final = 6
COMPUTED: Final = 7
PREEMPTIONS: Final = 8
SERVER: Final = 9
MISSING: Final = 10
OPERATION: Final = 11
INSTANCE: Final = 12
NEXT_WAITING: Final = 13
RIGHT_WAITING: Final = 14
OUTPUTS: Final = 15
PREEMPTED_AT: Final = 16
PREEMPTED: Final = 17
RANK: Final = 18
REFUSED: Final = 19
SLOT: Final = 20
IN_FLIGHT: Final = 21
HELD_BACK: Final = 22
IS_CRITICAL: Final = 23
EVENT_SIZE: Final = 24

# An operation. Edges out of it, by trigger: start, first token, finish; each list ends where the next begins.
ON_BACKEND: Final = 0
DELAY: Final = 1
DURATION: Final = 2
PROMPT: Final = 3
OUTPUT: Final = 4
KEYS: Final = 5
ON_START: Final = 6
ON_TOKEN: Final = 7
ON_FINISH: Final = 8
EDGES_END: Final = 9
GROUPS: Final = 10
GROUPS_END: Final = 11
ANSWER: Final = 12
PRIORITY: Final = 13
SESSION: Final = 14
TOO_LARGE: Final = 15
OPERATION_SIZE: Final = 16

# An edge: the distance from the source's event to the target's, in `s`, and the lag.
DISTANCE: Final = 0
LAG: Final = 1
EDGE_SIZE: Final = 2

# A group: its ordinal in its task, and where in `s` the operations that it holds are, as distances from the task's first event.
ORDINAL: Final = 0
HOLDS: Final = 1
HOLDS_END: Final = 2
GROUP_SIZE: Final = 4

# An instance of a task.
ARRIVAL: Final = 0
EVENTS: Final = 1
EVENTS_END: Final = 2
LEFT: Final = 3
ANSWERED: Final = 4
HAS_ANSWER: Final = 5
COUNTERS: Final = 6
SALT: Final = 7
SESSIONS: Final = 8
ATTAINED: Final = 9
FIRST_ROUTED: Final = 10
INSTANCE_SIZE: Final = 11

# A session of an instance: its server, and when its first request was routed.
SESSION_SERVER: Final = 0
SESSION_ROUTED: Final = 1
SESSION_SIZE: Final = 2

# What is due, in the lowest two bits; above them, whose it is.
IS_END: Final = 0
IS_ARRIVAL: Final = 1
IS_RELEASE: Final = 2

# What a policy's driver is told, in the lowest three bits; above them, the event.
CALL_SUBMITTED: Final = 0
CALL_ADMITTED: Final = 1
CALL_ENDED: Final = 2
TOOL_STARTED: Final = 3
TOOL_ENDED: Final = 4

# Commands of the driver.
CUT: Final = 1
FIND: Final = 2
COUNT_IDLE: Final = 3
SHARE: Final = 4
TAKE: Final = 5
REGISTER: Final = 6
LET_GO: Final = 7
DEMOTE: Final = 8
COUNT_COMPUTED: Final = 9
MATCH: Final = 10

# A server. `STEPS` counts the steps scheduled, that in flight included; a decoding request has computed BASE + STEPS.
NULL_BLOCK: Final = 0
FREE: Final = 1
FOUND: Final = 2
FIRST: Final = 3
LAST: Final = 4
RUNNING: Final = 5
DECODING: Final = 6
STEPS: Final = 7
PHASE_NOW: Final = 8
BASES: Final = 9
WHEEL: Final = 10
ENDS: Final = 11
WAITING_FIRST: Final = 12
WAITING_LAST: Final = 13
WAITING: Final = 14
ADMISSIONS: Final = 15
SPARE: Final = 16
SPARE_END: Final = 17
BEGIN: Final = 18
END: Final = 19
STEP: Final = 20
RUN: Final = 21
BLOCKED: Final = 22
WATCHED: Final = 23
YIELDING: Final = 24
YIELDING_END: Final = 25
# Two steps in flight: the end of the younger one, whether there is nothing to schedule beside the older one, and what is in
# them: events, doubled, plus 1 if the step yields a token. `IN_STEP` and `IN_STEP` + 1 count them, for even and odd steps.
NEXT_END: Final = 26
STALLED: Final = 27
IN_STEP: Final = 28
STEP_LISTS: Final = 30
PLANNED: Final = 31
WATCHED_AT: Final = 32
RESERVED: Final = 33
PRESSED: Final = 34
SERVER_SIZE: Final = 36

# A slot: what a running request is while it runs.
EVENT: Final = 0
ADMISSION: Final = 1
PREVIOUS: Final = 2
NEXT: Final = 3
BASE: Final = 4
TOKENS: Final = 5
LAST_STEP: Final = 6
TABLE: Final = 7
HELD: Final = 8
KEY: Final = 9
FOUND_SALTED: Final = 10
PHASE_PREVIOUS: Final = 11
PHASE_NEXT: Final = 12
IS_DECODING: Final = 13
CHUNK: Final = 14
ROW_FIRST: Final = 15
ROW_COUNT: Final = 16
ROW_START: Final = 17
ROW_TOKENS: Final = 18
LEFT_OUT: Final = 19
ROW_PHASE: Final = 20
PLACEHOLDERS: Final = 21
REGISTERED: Final = 22
SLOT_SIZE: Final = 24

# A bucket of the wheel: decoding requests of one phase, in the order of their admission.
BUCKET_FIRST: Final = 0
BUCKET_LAST: Final = 1
BUCKET_COUNT: Final = 2
BUCKET_SIZE: Final = 4

# Entries of heaps: a key and a value (see `heap`). The key of an end is (last step, admission) in one number.
ENTRY_SIZE: Final = 2
ADMISSION_BITS: Final = 31

# A block, in `b`: four to a cache line. The null block is the head of the free queue. `ENTRY` is 0, or twice the place of the
# block's key in the server's table, which begins at `FOUND`; plus 1 if other blocks had that key too: then, at `TWINS` plus
# half the block's place, the next and the previous block of that key are named.
FREE_NEXT: Final = 0
FREE_PREVIOUS: Final = 1
ENTRY: Final = 2
HOLDERS: Final = 3
BLOCK_RECORD: Final = 4

# Rows of the logs.
STEP_ROW: Final = 7
"""Server, index, start, end, tokens, requests, free blocks."""
RUN_ROW: Final = 6
"""Event, first step, count, start position, tokens a step, phase."""
PREFILL: Final = 1
DECODE: Final = 2

ROUND_ROBIN: Final = 0
LEAST_LOADED: Final = 1
PREFIX_AWARE: Final = 2
SESSION_STICKY: Final = 3

# What a priority is; numbers of `prepared`.
BY_SERVICE: Final = 1
BY_INSTANCE: Final = 2
BY_SESSION: Final = 3
