#!/bin/sh
# Print a new API key once and the SQL that stores its hash: seed-api-key.sh --org-id O --created-by W --name N [--role member]
set -eu
role=member org= by= name=
while [ $# -gt 0 ]; do
    case "$1" in
        --org-id) org=$2 ;; --created-by) by=$2 ;; --name) name=$2 ;; --role) role=$2 ;;
        *) echo "unknown option $1; known: --org-id --created-by --name --role" >&2; exit 2 ;;
    esac
    shift 2
done
for value in "$org" "$by" "$name"; do
    case "$value" in
        '' | *[!A-Za-z0-9@._-]*) echo "--org-id, --created-by and --name are needed: letters, digits, @ . _ -" >&2; exit 2 ;;
    esac
done
case "$role" in operator | member) ;; *) echo "--role is operator or member" >&2; exit 2 ;; esac
hex() { od -An -vtx1 -N "$1" /dev/urandom | tr -d ' \n'; }
digits=$(hex 20)
hash=$(printf %s "$digits" | sha256sum | cut -d' ' -f1)
# A comment to SQL, so the whole output can go to psql; only the hash is stored.
echo "-- key (shown once): space_$digits"
cat <<SQL
insert into organisations (id) values ('$org') on conflict do nothing;
insert into api_keys (id, org_id, name, role, key_sha256, created_by)
values ('key$(hex 10)', '$org', '$name', '$role', decode('$hash', 'hex'), '$by');
SQL
