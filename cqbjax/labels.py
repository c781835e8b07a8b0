"""Labels that several rooms know."""

# The optimal policy's: the yardstick that regret is measured against.
OPTIMAL = "optimal"
