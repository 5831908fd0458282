The option `bodyText=true` of the Spark source adds the column `body_text`: the body as a string, null where it is not UTF-8.
