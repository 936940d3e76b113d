"""PostgreSQL: the only package with the driver. Named SQL, migrations, typed rows, wake-ups.

From: api, controller
To: PostgreSQL
"""
