
-- Whether a value is a whole number within bounds.
local function whole(number, least, most)
  return number >= least and number <= most and number % 1 == 0
end

-- The functions of each kind of state, created when first needed: most calls need one kind, and creating closures costs
-- more than deciding.
local kinds = {}

-- The product of two numbers divided by a third, rounded down, when the product may not be exact. The first is less
-- than the third.
local function multiply_divide(first, second, divisor)
  if first * second <= EXACT then
    local product = first * second
    return (product - product % divisor) / divisor
  end
  -- Long multiplication by bits; the remainder stays below the divisor.
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
