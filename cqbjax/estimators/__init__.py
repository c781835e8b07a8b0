"""Regularised MNL maximum likelihood, kept up to date round by round.

`running` carries a rolling cubic model of the history in pages and expands a page anew each round
(few dimensions); `newton_cg` takes the exact gradient over a table of contexts every round
and a preconditioned Newton step (many dimensions). Both solve the blocks of the shown servers
alone, the others staying where they are (Algorithm 2, lines 13 to 19).
"""
