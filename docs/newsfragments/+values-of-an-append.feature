Messages, inputs and effects of an append are made by plain assignments: 5 % fewer steps for one append at a time and 6 % for appends of Java clients.
