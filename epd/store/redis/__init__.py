"""The store on Redis or Valkey: one server, scripts for all that has to be atomic."""
