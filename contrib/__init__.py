"""Programs around composer-pipeline that are not in the wheel; see README.md beside this file."""
