-- name: key_by_hash
-- The live key with this SHA-256.
select id, org_id, role, scopes, created_by, name from api_keys
where key_sha256 = :sha256 and revoked_at is null and (expires_at is null or expires_at > now());

-- name: add_organisation
-- Make sure the organisation is there.
insert into organisations (id) values (:org_id) on conflict do nothing;

-- name: add_key
-- Store a key's hash.
insert into api_keys (id, org_id, name, role, scopes, key_sha256, created_by)
values (:id, :org_id, :name, :role, :scopes, :sha256, :created_by)
returning id, org_id, name, role, scopes, created_by, created_at, expires_at, revoked_at;

-- name: list_keys
-- One page of an organisation's keys, newest first.
select id, org_id, name, role, scopes, created_by, created_at, expires_at, revoked_at from api_keys
where org_id = :org_id and (:before_at::timestamptz is null or (created_at, id) < (:before_at, :before_id::text))
order by created_at desc, id desc limit :size;

-- name: revoke_key
-- End a key of this organisation.
update api_keys set revoked_at = now() where id = :id and org_id = :org_id and revoked_at is null returning id;

-- name: lock_idempotency_key
-- Let requests with the same key pass one after the other.
select pg_advisory_xact_lock(hashtextextended(:org_id || '/' || :key, 7400));

-- name: get_idempotency_key
-- What was answered to this key before (a key is forgotten after a day).
select body_sha256, response from idempotency_keys
where org_id = :org_id and key = :key and created_at > now() - interval '1 day';

-- name: put_idempotency_key
-- Remember the answer.
insert into idempotency_keys (org_id, key, body_sha256, status, response)
values (:org_id, :key, :body_sha256, :status, :response)
on conflict (org_id, key) do update
set body_sha256 = excluded.body_sha256, status = excluded.status, response = excluded.response, created_at = now();

-- name: template_isolations
-- The isolation of every ready node that has the template.
select coalesce(n.machine->>'isolation', 'emulated') as isolation from templates t join nodes n on n.id = t.node_id
where t.name = :template and n.state = 'ready';

-- name: count_live_sandboxes
-- How many of an organisation's sandboxes take room.
select count(*) from sandboxes where org_id = :org_id and state not in ('deleted', 'failed');

-- name: add_sandbox
-- Write the desired state of a new sandbox.
insert into sandboxes (id, org_id, name, template, vcpus, memory_mib, disk_mib, metadata, env, require_isolation,
                       timeout_ms, idle_timeout_ms, on_timeout, created_by, expires_at)
values (:id, :org_id, :name, :template, :vcpus, :memory_mib, :disk_mib, :metadata, :env, :require_isolation,
        :timeout_ms, :idle_timeout_ms, :on_timeout, :created_by, now() + :timeout_ms::bigint * interval '1 millisecond')
returning *;

-- name: get_sandbox
-- One sandbox of this organisation.
select * from sandboxes where id = :id and org_id = :org_id;

-- name: lock_sandbox
-- One sandbox of this organisation, locked until the transaction ends.
select * from sandboxes where id = :id and org_id = :org_id for update;

-- name: list_sandboxes
-- One page of an organisation's sandboxes, newest first; deleted ones only when asked for.
select * from sandboxes
where org_id = :org_id and (:before_at::timestamptz is null or (created_at, id) < (:before_at, :before_id::text))
  and ((:state::text is null and state <> 'deleted') or state = :state)
  and (:template::text is null or template = :template) and metadata @> :metadata::jsonb
order by created_at desc, id desc limit :size;

-- name: patch_sandbox
-- Change what may be changed; what is null stays.
update sandboxes set generation = generation + 1,
    timeout_ms = coalesce(:timeout_ms::bigint, timeout_ms),
    expires_at = case when :timeout_ms::bigint is null then expires_at
                      else now() + :timeout_ms::bigint * interval '1 millisecond' end,
    idle_timeout_ms = coalesce(:idle_timeout_ms::bigint, idle_timeout_ms),
    metadata = coalesce(:metadata::jsonb, metadata)
where id = :id returning *;

-- name: want_deleted
-- Ask for the sandbox to go.
update sandboxes set desired = 'deleted', generation = generation + 1 where id = :id returning *;

-- name: add_operation
-- Start an operation.
insert into operations (id, org_id, sandbox_id, kind, request_id)
values (:id, :org_id, :sandbox_id, :kind, :request_id) returning *;

-- name: get_operation
-- One operation of this organisation.
select * from operations where id = :id and org_id = :org_id;

-- name: open_delete
-- The last delete of a sandbox.
select * from operations where sandbox_id = :sandbox_id and kind = 'delete' order by created_at desc limit 1;

-- name: add_event
-- A line of the timeline.
insert into events (sandbox_id, org_id, type, data) values (:sandbox_id, :org_id, :type, :data);

-- name: list_events
-- A page of the timeline, oldest first.
select id, at, type, data from events where sandbox_id = :sandbox_id and id > :after order by id limit :size;

-- name: add_command
-- A command that will start at its first attach.
insert into commands (id, org_id, sandbox_id, spec, detach, labels, traceparent, request_id)
values (:id, :org_id, :sandbox_id, :spec, :detach, :labels, :traceparent, :request_id) returning *;

-- name: touch_sandbox
-- A command is activity.
update sandboxes set last_activity_at = now() where id = :id;

-- name: get_command
-- One command of a sandbox of this organisation.
select * from commands where id = :id and sandbox_id = :sandbox_id and org_id = :org_id;

-- name: command_spec
-- A command as the data plane needs it to start it.
select * from commands where id = :id and sandbox_id = :sandbox_id;

-- name: list_commands
-- One page of a sandbox's commands, newest first.
select * from commands
where sandbox_id = :sandbox_id and (:state::text is null or state = :state)
  and (:before_at::timestamptz is null or (created_at, id) < (:before_at, :before_id::text))
order by created_at desc, id desc limit :size;

-- name: list_templates
-- Every template that a node has, with how many have it.
select name, digest, max(size_mib) as size_mib, count(*) as nodes, max(reported_at) as reported_at
from templates group by name, digest order by name, digest;

-- name: list_nodes
-- One page of nodes, newest first.
select * from nodes where (:before_at::timestamptz is null or (created_at, id) < (:before_at, :before_id::text))
order by created_at desc, id desc limit :size;

-- name: add_node
-- A node that may enrol once with the token of this hash.
insert into nodes (id, name, enrolment_sha256, enrolment_expires)
values (:id, :name, :sha256, now() + :ttl_s::int * interval '1 second') returning *;

-- name: count_states
-- How many sandboxes are in each state, for the metrics.
select state, count(*) as count from sandboxes group by state;
