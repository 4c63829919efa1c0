"""Connects with psycopg 3 (libpq) and the URI in the file that the first argument names.

Prints one line of JSON: driver, version, ok, encrypted, error.
"""

import json
import sys
from pathlib import Path

# This file has the package's name: without its own folder on the path, the import finds the package.
sys.path.pop(0)
import psycopg  # noqa: E402

SECONDS_TO_CONNECT = 10
QUERY = "select current_user, (select ssl from pg_stat_ssl where pid = pg_backend_pid())"

report = {
    "driver": "psycopg",
    "version": f"{psycopg.__version__} (libpq {psycopg.pq.version()})",
    "ok": False,
    "encrypted": False,
    "error": "",
}
try:
    with psycopg.connect(Path(sys.argv[1]).read_text(), connect_timeout=SECONDS_TO_CONNECT) as connection:
        _user, report["encrypted"] = connection.execute(QUERY).fetchone()
        report["ok"] = True
except (psycopg.Error, OSError) as error:
    report["error"] = str(error)
print(json.dumps(report))
