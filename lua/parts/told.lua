-- told: what is told of the waiting line and its tasks is one text, "<length>:<text>" for
-- each argument: most calls are answered without it.
local function texts_in(told)
  local texts, from = {}, 1
  while from <= #told do
    local colon = string.find(told, ':', from, true)
    local ends = colon + string.sub(told, from, colon - 1)
    texts[#texts + 1], from = string.sub(told, colon + 1, ends), ends + 1
  end
  return texts
end

-- What a function returns that finds these texts in place of the arguments.
local function read_from(texts, make_it)
  local here = argument
  arguments, argument = texts, 0
  local made = make_it()
  arguments, argument = ARGV, here
  return made
end
