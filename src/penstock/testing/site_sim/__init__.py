"""A deterministic simulation of sites that share one subject space: clusters joined by gateways, and leaf
nodes of them and of each other, with the real links and kernels on a simulated network and clock.

`python -m penstock.testing.site_sim --seed 7` replays one run, `--seeds 1000` runs fresh ones. The network
and the servers are those of `cluster_sim`; what servers have here besides is in `site_server`.

- `site_map`: which sites there are, how they are joined, and who reaches whom.
- `site_server`: one server with gateway links and leaf node links.
- `site_run`: a seed: random subscriptions, publishes, requests, services; connections that break, partitions,
  restarts; and the checks.

The checks, at any time: no subscription gets a message twice, no queue group more than one copy of it. When
all faults are over, within a bound of virtual time: each cluster is a full mesh, each server has one link to
each other cluster and to each of its hubs, and each link's receiver knows exactly the interest of the other
side. Every message then reaches each interested subscription once and each queue group once, in the
publisher's own site if the group has a member there, else in a site below it before another cluster. Every
request gets all its answers once, though its inbox is new, also from a service that another service passed it
on to.
"""
