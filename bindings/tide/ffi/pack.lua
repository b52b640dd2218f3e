-- pack(...): the values as a list with their number n, nils counted.
return function(...) return { n = select('#', ...), ... } end
