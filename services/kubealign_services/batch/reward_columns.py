"""Names of the columns and scalars that hold the rewards of a batch by source."""

#: Prefix of the sequence columns: a source's rewards, standardised and clipped, before its weight.
TRANSFORMED = "transformed."
#: Prefix of the scalars: the weight of a source.
WEIGHT = "weight."
