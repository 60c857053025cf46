"""Running the whole thing on one machine: preflight, a private Ray, deployment, and taking all of it down again."""
