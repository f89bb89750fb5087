"""Ways to solve an adaptation: Newton's method, a warm start on the data, descent on a penalty that represents them."""
