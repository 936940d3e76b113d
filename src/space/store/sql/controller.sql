-- name: ctl_enrol_node
-- Take a one-time enrolment token: it must be known, unused and unexpired; the certificate is bound in the same step.
update nodes set enrolment_sha256 = null, enrolment_expires = null
where enrolment_sha256 = :token_sha256 and enrolment_expires > now()
returning id, name;

-- name: ctl_bind_certificate
-- Remember the only certificate that may speak for this node.
update nodes set certificate_sha256 = :certificate_sha256 where id = :node;

-- name: ctl_node_by_certificate
-- Find the node that a client certificate belongs to.
select id, name, state from nodes where id = :node and certificate_sha256 = :certificate_sha256;

-- name: ctl_node_hello
-- Record what a connecting node says of itself; a draining one stays so.
update nodes set state = case when state = 'draining' then state else 'ready' end, capacity = :capacity,
    machine = :machine, data_plane_url = :data_plane_url, last_seen_at = now()
where id = :node;

-- name: ctl_node_seen
-- Renew a node's lease.
update nodes set last_seen_at = now(), state = case when state = 'lost' then 'ready' else state end where id = :node;

-- name: ctl_forget_templates
-- Drop what a node reported before.
delete from templates where node_id = :node;

-- name: ctl_add_template
-- Record a template that stands on a node.
insert into templates (name, node_id, digest, size_mib, manifest)
values (:name, :node, :digest, :size_mib, :manifest)
on conflict (name, node_id) do update set digest = excluded.digest, size_mib = excluded.size_mib,
    manifest = excluded.manifest, reported_at = now();

-- name: ctl_due
-- Sandboxes for which time or a lost wake-up may have left a step to do.
select id from sandboxes s
where state <> 'deleted' and (
    (node_id is null and state = 'creating')
    or (desired = 'running' and expires_at <= now())
    or (desired = 'running' and idle_timeout_ms is not null
        and last_activity_at + idle_timeout_ms * interval '1 millisecond' <= now()
        and not exists (select 1 from commands c where c.sandbox_id = s.id and c.state = 'running'))
    or (desired = 'deleted' and state <> 'deleting')
    or (state = 'deleting' and node_id is null))
order by created_at limit 200;

-- name: ctl_lock_sandbox
-- One sandbox, locked against other replicas; nothing while another works on it.
select s.*, case when s.idle_timeout_ms is null or exists (
        select 1 from commands c where c.sandbox_id = s.id and c.state = 'running') then null
    else s.last_activity_at + s.idle_timeout_ms * interval '1 millisecond' end as idle_at,
    extract(epoch from now() - s.created_at)::float8 as age_s, now() as now
from sandboxes s where s.id = :sandbox for update of s skip locked;

-- name: ctl_lock_nodes
-- Every node, locked so that two placements do not promise the same memory.
select id, state, capacity, machine from nodes order by id for update;

-- name: ctl_node_use
-- What the sandboxes of each node take.
select node_id, count(*)::int as sandboxes, sum(memory_mib)::int as memory_mib, sum(disk_mib)::int as disk_mib
from sandboxes where node_id is not null and state not in ('deleted', 'failed') group by node_id;

-- name: ctl_node_templates
-- The templates of each node.
select node_id, name, digest from templates;

-- name: ctl_assign
-- Give a sandbox to a node; reports of any earlier assignment are stale from now on.
update sandboxes set node_id = :node, template_digest = :digest, epoch = epoch + 1 where id = :sandbox;

-- name: ctl_want_deleted
-- Its time is over.
update sandboxes set desired = 'deleted', generation = generation + 1 where id = :sandbox;

-- name: ctl_begin_delete
-- Start deleting; reports about the running machine are stale from now on.
update sandboxes set state = 'deleting', epoch = epoch + 1 where id = :sandbox;

-- name: ctl_move
-- Record an observed state; the database refuses a move that is not allowed.
update sandboxes set state = :state, observed_at = now(), reason = coalesce(:reason, reason),
    isolation = coalesce(:isolation, isolation), started_from = coalesce(:started_from, started_from),
    timings = timings || :timings::jsonb,
    running_at = case when :state = 'running' then coalesce(running_at, now()) else running_at end,
    deleted_at = case when :state = 'deleted' then now() else deleted_at end
where id = :sandbox;

-- name: ctl_observed
-- The node still sees what is recorded.
update sandboxes set observed_at = now() where id = :sandbox;

-- name: ctl_progress
-- Tell a waiting person the phase.
update operations set state = 'running', progress = :phase
where sandbox_id = :sandbox and state in ('pending', 'running');

-- name: ctl_finish_operations
-- End the open operations of a kind ('' is every kind) on a sandbox.
update operations set state = :state, error = :error::jsonb, finished_at = now()
where sandbox_id = :sandbox and (:kind = '' or kind = :kind) and state in ('pending', 'running');

-- name: ctl_event
-- Write a line of the timeline.
insert into events (sandbox_id, org_id, type, data) select id, org_id, :type, :data::jsonb from sandboxes where id = :sandbox;

-- name: ctl_lose_commands
-- The machine is gone: what had not ended will never be known.
update commands set state = 'lost', reason = :reason, finished_at = now()
where sandbox_id = :sandbox and state in ('created', 'running');

-- name: ctl_assignments
-- What a node should hold, or one sandbox of it ('' is all).
select id, epoch, desired, state, template, template_digest, vcpus, memory_mib, disk_mib, env from sandboxes
where node_id = :node and (:sandbox = '' or id = :sandbox)
  and ((desired = 'running' and state in ('creating', 'running', 'paused')) or state = 'deleting');

-- name: ctl_command_report
-- Record a command's state if its sandbox is on the reporting node and the command has not ended.
update commands c set state = :state, pid = coalesce(:pid, c.pid), exit_code = :exit_code, signal = :signal,
    reason = :reason, started_at = coalesce(:started_at, c.started_at), finished_at = :finished_at
from sandboxes s
where c.id = :command and c.sandbox_id = :sandbox and s.id = c.sandbox_id and s.node_id = :node
  and c.state in ('created', 'running') and (c.state <> :state);

-- name: ctl_activity
-- Clients used these sandboxes.
update sandboxes set last_activity_at = now() where node_id = :node and id = any(:sandboxes::text[]);

-- name: ctl_lose_nodes
-- Nodes whose lease ran out.
update nodes set state = 'lost'
where state in ('ready', 'draining') and last_seen_at < now() - :lease_s::float8 * interval '1 second' returning id, name;

-- name: ctl_node_sandboxes
-- What a lost node was running.
select id from sandboxes where node_id = :node and state not in ('deleted', 'deleting', 'failed') for update;
