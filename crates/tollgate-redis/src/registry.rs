//! The fleet's agreement on tags: which three digits stand for which quota in the states of a family.
