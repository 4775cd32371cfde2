-- room.sql: tells how many connections the server allows to all of its clients together.
select current_setting('max_connections')::integer as most
