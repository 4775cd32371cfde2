-- fleet.sql: tells which fleet this database is, for the names and labels of containers.
select f.fleet_id from leasehold.fleet f
