-- The first sandbox: organisations and keys, nodes, templates, sandboxes, operations, commands, the timeline.
-- Times are timestamptz (UTC). Ids carry their prefix (sbx…, op…, cmd…, tpl…, node…, key…).

create table organisations (
    id          text primary key,
    created_at  timestamptz not null default now()
);

create table api_keys (
    id          text primary key,
    org_id      text not null references organisations,
    name        text not null,
    role        text not null check (role in ('operator', 'member')),
    scopes      text[] not null default '{}',
    key_sha256  bytea not null unique check (length(key_sha256) = 32),  -- of the 40 hex digits, never the key itself
    created_by  text not null,
    created_at  timestamptz not null default now(),
    expires_at  timestamptz,
    revoked_at  timestamptz
);
create index api_keys_by_org on api_keys (org_id, created_at desc);

create table nodes (
    id                text primary key,
    name              text not null unique,
    state             text not null default 'enrolling' check (state in ('enrolling', 'ready', 'draining', 'lost')),
    enrolment_sha256  bytea,             -- of the one-time enrolment token; null once used
    enrolment_expires timestamptz,
    certificate_sha256 bytea,            -- of the node's client certificate (DER)
    capacity          jsonb not null default '{}',   -- {vcpus, memory_mib, disk_mib, max_sandboxes}
    machine           jsonb not null default '{}',   -- {driver, accel, isolation, version}
    data_plane_url    text,
    last_seen_at      timestamptz,
    created_at        timestamptz not null default now()
);

create table templates (
    name        text not null,           -- "seed:latest"
    node_id     text not null references nodes on delete cascade,
    digest      text not null,           -- "sha256:…" of the manifest
    size_mib    integer not null,
    manifest    jsonb not null default '{}',
    reported_at timestamptz not null default now(),
    primary key (name, node_id)
);

create table sandboxes (
    id              text primary key,
    org_id          text not null references organisations,
    name            text,
    state           text not null default 'creating',
    reason          text,                -- why it failed, for a person
    desired         text not null default 'running' check (desired in ('running', 'deleted')),
    epoch           bigint not null default 0,       -- fences reports: one more with every assignment
    generation      bigint not null default 1,       -- for If-Match
    template        text not null,
    template_digest text,
    node_id         text references nodes,
    vcpus           integer not null,
    memory_mib      integer not null,
    disk_mib        integer not null,
    metadata        jsonb not null default '{}',
    env             jsonb not null default '{}',
    isolation       text check (isolation in ('kvm', 'emulated')),
    require_isolation text check (require_isolation in ('kvm')),
    started_from    text check (started_from in ('pool', 'clone', 'boot')),
    timings         jsonb not null default '{}',     -- phase → milliseconds, as the worker measured them
    timeout_ms      bigint not null check (timeout_ms > 0),
    idle_timeout_ms bigint check (idle_timeout_ms > 0),
    on_timeout      text not null default 'delete' check (on_timeout in ('delete', 'suspend')),
    created_by      text not null,
    created_at      timestamptz not null default now(),
    observed_at     timestamptz,
    running_at      timestamptz,
    expires_at      timestamptz not null,
    last_activity_at timestamptz not null default now(),
    deleted_at      timestamptz
);
create index sandboxes_by_org on sandboxes (org_id, created_at desc, id desc);
create index sandboxes_by_node on sandboxes (node_id) where state not in ('deleted');
create index sandboxes_unplaced on sandboxes (created_at) where node_id is null and state = 'creating';

-- The table of allowed moves. domain/sandbox.py holds the same pairs; a test compares them.
create table sandbox_moves (from_state text not null, to_state text not null, primary key (from_state, to_state));
insert into sandbox_moves values
    ('creating', 'running'), ('running', 'paused'), ('paused', 'running'),
    ('running', 'suspending'), ('suspending', 'suspended'), ('suspended', 'waking'), ('waking', 'running'),
    ('running', 'rolling_back'), ('paused', 'rolling_back'), ('suspended', 'rolling_back'), ('rolling_back', 'running'),
    ('creating', 'deleting'), ('running', 'deleting'), ('paused', 'deleting'), ('suspending', 'deleting'),
    ('suspended', 'deleting'), ('waking', 'deleting'), ('rolling_back', 'deleting'), ('failed', 'deleting'),
    ('deleting', 'deleted'),
    ('creating', 'failed'), ('running', 'failed'), ('paused', 'failed'), ('suspending', 'failed'),
    ('suspended', 'failed'), ('waking', 'failed'), ('rolling_back', 'failed'), ('deleting', 'failed');

create function refuse_move() returns trigger language plpgsql as $$
begin
    if new.state is distinct from old.state
       and not exists (select 1 from sandbox_moves where from_state = old.state and to_state = new.state) then
        raise exception 'sandbox %: no move from % to %', old.id, old.state, new.state using errcode = 'SP001';
    end if;
    return new;
end $$;
create trigger sandboxes_moves before update of state on sandboxes for each row execute function refuse_move();

create table operations (
    id          text primary key,
    org_id      text not null references organisations,
    sandbox_id  text not null references sandboxes on delete cascade,
    kind        text not null,           -- create, delete
    state       text not null default 'pending' check (state in ('pending', 'running', 'succeeded', 'failed')),
    progress    text,                    -- the phase, for a person
    error       jsonb,                   -- {code, detail, hint}
    request_id  text not null,
    created_at  timestamptz not null default now(),
    finished_at timestamptz
);
create index operations_open on operations (sandbox_id) where state in ('pending', 'running');

create table commands (
    id          text primary key,
    org_id      text not null references organisations,
    sandbox_id  text not null references sandboxes on delete cascade,
    spec        jsonb not null,          -- {command, cwd, env, timeout_ms, user, tty, stdin}
    detach      boolean not null default false,
    labels      jsonb not null default '{}',
    traceparent text,
    state       text not null default 'created' check (state in ('created', 'running', 'exited', 'failed', 'lost')),
    pid         integer,
    exit_code   integer,
    signal      text,
    reason      text,
    request_id  text not null,
    created_at  timestamptz not null default now(),
    started_at  timestamptz,
    finished_at timestamptz,
    check (state <> 'exited' or (exit_code is null) <> (signal is null))  -- an end is always a wait status
);
create index commands_by_sandbox on commands (sandbox_id, created_at desc, id desc);

create table events (                    -- the timeline
    id          bigint generated always as identity primary key,
    sandbox_id  text not null references sandboxes on delete cascade,
    org_id      text not null,
    at          timestamptz not null default now(),
    type        text not null,
    data        jsonb not null default '{}'
);
create index events_by_sandbox on events (sandbox_id, id);

create table idempotency_keys (
    org_id       text not null,
    key          text not null,
    body_sha256  bytea not null,
    status       integer not null,
    response     jsonb not null,
    created_at   timestamptz not null default now(),
    primary key (org_id, key)
);

-- Wake-ups are hints: every loop also wakes by time and re-reads. Channels: space_sandbox (sandbox id), space_operation (operation id).
create function wake() returns trigger language plpgsql as $$
begin
    perform pg_notify(tg_argv[0], new.id);
    return null;
end $$;
create trigger sandboxes_wake after insert or update of state, desired, node_id, epoch on sandboxes
    for each row execute function wake('space_sandbox');
create trigger operations_wake after update of state on operations for each row execute function wake('space_operation');
