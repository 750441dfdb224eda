"""How much of the product one request runs through: files and lines, for a miss and for a cached answer."""
