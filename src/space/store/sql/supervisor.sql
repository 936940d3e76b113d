-- name: supervisor_ensure_organisation
-- Make the organisation of `space up` when it is missing.
insert into organisations (id) values (:org) on conflict do nothing;

-- name: supervisor_key_is_valid
-- Tell whether a key with this hash is known and not revoked.
select exists (
    select 1 from api_keys
    where key_sha256 = :sha256 and revoked_at is null and (expires_at is null or expires_at > now())
);

-- name: supervisor_add_operator_key
-- Store the hash of the operator key that `space up` made.
insert into api_keys (id, org_id, name, role, key_sha256, created_by)
values (:id, :org, 'space up', 'operator', :sha256, 'space up');

-- name: supervisor_node_enrolled
-- Tell whether the named node has a certificate already.
select exists (select 1 from nodes where name = :name and certificate_sha256 is not null);

-- name: supervisor_expect_node
-- Let the named node enrol once with the token of this hash.
insert into nodes (id, name, enrolment_sha256, enrolment_expires)
values (:id, :name, :sha256, now() + interval '1 hour')
on conflict (name) do update
set enrolment_sha256 = excluded.enrolment_sha256, enrolment_expires = excluded.enrolment_expires,
    certificate_sha256 = null, state = 'enrolling';

-- name: supervisor_node_state
-- Give the named node's state and machine.
select state, machine from nodes where name = :name;

-- name: supervisor_delete_all_on_node
-- Ask for the end of every sandbox on the named node.
update sandboxes set desired = 'deleted'
where desired <> 'deleted' and state not in ('deleted')
  and (node_id is null or node_id = (select id from nodes where name = :name));

-- name: supervisor_left_on_node
-- Count the sandboxes of the named node that are not gone yet.
select count(*) from sandboxes
where state not in ('deleted', 'failed') and node_id = (select id from nodes where name = :name);
