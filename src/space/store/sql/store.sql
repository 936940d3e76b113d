-- name: ping
-- Answer when the database answers.
select 1;
