-- Rows of further models of sounds, and of series of numbers, as gen/model/families.lua describes them.

return {}
