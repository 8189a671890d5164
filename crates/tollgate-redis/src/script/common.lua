
-- Whether a number is whole and within its bounds; what is not a number is not.
local function whole(number, least, most)
  return number >= least and number <= most and number % 1 == 0
end

-- What a kind of state can do, made when it is first needed: a call mostly needs one, and making costs more than deciding.
local kinds = {}

-- The product of two numbers over a third, rounded down, where the product may not be exact. The first is less than the third.
local function multiply_divide(first, second, divisor)
  if first * second <= EXACT then
    local product = first * second
    return (product - product % divisor) / divisor
  end
  -- Long multiplication by bits: what is left stays below the divisor.
  local bit = 4503599627370496
  local quotient, rest = 0, 0
  while bit >= 1 do
    quotient = quotient + quotient
    if rest >= divisor - rest then
      rest = rest - (divisor - rest)
      quotient = quotient + 1
    else
      rest = rest + rest
    end
    if second >= bit then
      second = second - bit
      if rest >= divisor - first then
        rest = rest - (divisor - first)
        quotient = quotient + 1
      else
        rest = rest + first
      end
    end
    bit = bit / 2
  end
  return quotient
end
