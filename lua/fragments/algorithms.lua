-- The algorithms by name; each adds itself. policy.lua says what one is made of.
local algorithms = {}
