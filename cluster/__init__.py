"""From an AWS account with quota to the served fleet, in stages. See docs/cluster.md."""
