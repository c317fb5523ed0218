"""Files that are whole or absent, the record `run.json`, secrets, disks."""
