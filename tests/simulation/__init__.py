"""A simulation of guard and controller on a virtual clock: seeded schedules of faults at every visible operation."""
