"""Pure decisions: states and their allowed moves, plan, placement, errors. No I/O, no clock, no log.

From: api, controller, worker, dataplane
To: nobody
"""
